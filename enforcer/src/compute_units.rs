//! The limit on compute units: `FH_CU_RANGE`.
//!
//! The runtime keeps it: it gives each queue the mask that stands in `HSA_CU_MASK` ([`before_main`]). What is done here, at the
//! first HIP call, is to see to it that the mask is there, to tell what was cut, and to know what each
//! device is said to have.

pub(crate) mod before_main;
mod variables;

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hipflex_kfd::Bdf;
use hipflex_kfd::cu::{
    self, CuError, CuGpu, CuMask, CuRange, Given, MARKER, Machine, Own, Text, Variables,
};

use crate::by_number::ByNumber;
use crate::environment;
use crate::process::Trouble;
use crate::settings::{self, FailMode};
use crate::stderr::say;
use crate::which_gpu::{self, Identity, Placed, Runtime, Told};
use variables::{MASK, SKIP_INIT};

pub(crate) use variables::now as variable_now;

/// What each GPU is given.
struct Limits {
    gpus: Vec<(CuGpu, Given)>,
    /// How many compute units that is, on each of them.
    used: Vec<u32>,
    by_number: ByNumber,
}

impl Identity for (CuGpu, Given) {
    fn bdf(&self) -> Bdf {
        self.0.bdf
    }

    fn unique_id(&self) -> u64 {
        self.0.unique_id
    }
}

/// Null while there is no limit. Never freed: other threads may look at it. A forked child goes on with it, as the
/// runtime goes on with its mask.
static LIMITS: AtomicPtr<Limits> = AtomicPtr::new(ptr::null_mut());

/// Whether compute units are limited.
#[inline]
pub(crate) fn are_limited() -> bool {
    !LIMITS.load(Ordering::Acquire).is_null()
}

fn limits() -> Option<&'static Limits> {
    // SAFETY: null or a leaked box.
    unsafe { LIMITS.load(Ordering::Acquire).as_ref() }
}

/// What a program is told for `native` compute units (or WGPs, as the runtime counts) of a HIP device.
pub(crate) fn share(device: c_int, native: u64) -> u64 {
    let found = limits().and_then(|limits| limits.of_device(device));
    match (found, u32::try_from(native)) {
        (Some((gpu, used)), Ok(native)) => u64::from(gpu.shape().share(native, used)),
        _ => native,
    }
}

/// The mask of this process's first GPU: what is shown of it to others.
pub(crate) fn shown() -> Option<&'static CuMask> {
    limits()?.gpus.first().map(|(_, given)| &given.mask)
}

/// Keeps the limit of `FH_CU_RANGE`. If that cannot be done: an error, or with `FH_FAIL_MODE=open` a line to the
/// user.
pub(crate) fn limit(range: Result<OsString, String>) -> Result<(), Trouble> {
    let kept = match range {
        Ok(range) => keep(range.as_bytes()),
        Err(error) => Err(Trouble::Configuration(error)),
    };
    match kept {
        Ok(gpus) => {
            tell(&gpus);
            let limits = Box::new(Limits {
                used: gpus.iter().map(|(_, given)| given.mask.count()).collect(),
                gpus,
                by_number: ByNumber::new(),
            });
            LIMITS.store(Box::into_raw(limits), Ordering::Release);
            Ok(())
        }
        Err(Trouble::Configuration(why) | Trouble::Passing(why))
            if settings::fail_mode() == FailMode::Open =>
        {
            say!("{why}. This process may use ALL compute units, because FH_FAIL_MODE=open");
            Ok(())
        }
        Err(trouble) => Err(trouble),
    }
}

/// Sees to it that the runtime will use the mask, or has.
fn keep(range: &[u8]) -> Result<Vec<(CuGpu, Given)>, Trouble> {
    let mut machine = Box::new(Machine::empty());
    let trouble = |error: CuError| {
        let why = format!("FH_CU_RANGE: {}", error.explain(range));
        if error.may_pass() {
            Trouble::Passing(why)
        } else {
            Trouble::Configuration(why)
        }
    };
    // What no machine would understand is told as such, also where there is none.
    CuRange::parse(range).map_err(|error| trouble(CuError::Range(error)))?;
    machine.read(b"").map_err(trouble)?;
    let visible = variables::now("ROCR_VISIBLE_DEVICES");
    let (mask, user) = masks();
    let variables = Variables {
        range,
        visible: visible.as_deref(),
        mask: user.as_deref(),
    };
    let mut gpus = Vec::new();
    cu::give(&variables, &machine, &mut |_, gpu, given| {
        gpus.push((*gpu, *given));
    })
    .map_err(trouble)?;
    let is_skipped = variables::now(SKIP_INIT).is_some_and(|value| variables::is_one(&value));
    let in_force = mask.is_some_and(|mask| cu::are_in_force(&mask, &gpus)) && !is_skipped;
    if in_force || gpus.is_empty() {
        return Ok(gpus);
    }
    if runtime_has_started() {
        return Err(Trouble::Configuration(format!(
            "FH_CU_RANGE: {MASK} is not what it must be, and HIP has started with it: set FH_CU_RANGE before the \
             program starts, and leave {MASK} and {SKIP_INIT} alone"
        )));
    }
    if set(&variables, &gpus) {
        Ok(gpus)
    } else {
        Err(trouble(CuError::TooMuch))
    }
}

/// `HSA_CU_MASK` as it is now, and as the user has set it.
fn masks() -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let (mask, marker) = (variables::now(MASK), variables::now(MARKER));
    let user = match &mask {
        Some(_) => Own::of(mask.as_deref(), marker.as_deref()).user,
        // It was removed since, or the whole environment was.
        None => {
            Own::of(
                environment::runtime_at_start(MASK).flatten(),
                environment::runtime_at_start(MARKER).flatten(),
            )
            .user
        }
    };
    let user = user.map(<[u8]>::to_vec);
    (mask, user)
}

/// Whether the runtime has read its variables: it opens the driver when it does.
fn runtime_has_started() -> bool {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else {
        return true;
    };
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target == Path::new("/dev/kfd"))
}

fn set(variables: &Variables<'_>, gpus: &[(CuGpu, Given)]) -> bool {
    /// For the masks of 64 GPUs of 1,024 compute units, of which every second is used, twice.
    const LONGEST: usize = 512 * 1024;
    /// For what other threads add meanwhile, and ours.
    const MORE: usize = 64;
    let mut mask = vec![0; LONGEST];
    let mut mask = Text::new(&mut mask);
    for (number, (_, given)) in (0..).zip(gpus) {
        cu::write_set(&mut mask, number, &given.mask);
    }
    let others = [Some(variables.range), variables.visible, variables.mask];
    let others = others.iter().flatten().map(|text| text.len());
    let len = others.fold(
        mask.len().saturating_mul(2).saturating_add(256),
        usize::saturating_add,
    );
    // They stay for good: the environment points to them.
    let entries = Box::leak(vec![0; len].into_boxed_slice());
    let array = vec![ptr::null(); variables::count().saturating_add(MORE)];
    let array = Box::leak(array.into_boxed_slice());
    // SAFETY: both are leaked and of nobody else.
    unsafe {
        variables::set(
            ptr::null(),
            variables,
            mask.written(),
            Text::new(entries),
            array,
        )
    }
}

/// Tells the user what he does not get as he asked for it, once.
fn tell(gpus: &[(CuGpu, Given)]) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    for (gpu, given) in gpus {
        if let Some(told) = given.told(gpu) {
            say!("FH_CU_RANGE: {told}");
        }
    }
}

impl Limits {
    /// The GPU that HIP calls `device`, and how many of its compute units may be used.
    fn of_device(&self, device: c_int) -> Option<(&CuGpu, u32)> {
        let index = self.by_number.index(device, || self.find(device))?;
        let (gpu, _) = self.gpus.get(index)?;
        Some((gpu, *self.used.get(index)?))
    }

    /// See [`ByNumber::index`]. A native call.
    #[cold]
    fn find(&self, device: c_int) -> Option<Option<usize>> {
        // An error of the runtime says nothing of the GPU, so it is not remembered.
        let address = Runtime.address(device)?;
        Some(
            match which_gpu::place(&self.gpus, device, address, &Runtime, || self.shown()) {
                Placed::At(index) => Some(index),
                Placed::Ambiguous => self.alike(address),
                Placed::Nowhere => None,
            },
        )
    }

    /// Which GPUs HIP shows, in its order: these are those that ROCr shows, in its. `None`: that is not certain.
    fn shown(&self) -> Option<Vec<usize>> {
        if !which_gpu::variables_are_certain() {
            return None;
        }
        which_gpu::shown_by_hip((0..self.gpus.len()).collect())
    }

    /// A GPU at an address, where it cannot be told from other partitions of its board: any of them will do if they have the
    /// same.
    fn alike(&self, address: Bdf) -> Option<usize> {
        let mut found = (0..)
            .zip(&self.gpus)
            .filter(|(_, (gpu, _))| which_gpu::is_same(gpu.bdf, address, false));
        let (index, (gpu, given)) = found.next()?;
        let alike = |(other, its): &(CuGpu, Given)| {
            other.shape() == gpu.shape() && its.mask.count() == given.mask.count()
        };
        found.all(|(_, other)| alike(other)).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(range: &str, locations: &[u32]) -> Limits {
        let mut machine = Machine::empty();
        for location in locations {
            let gpu = CuGpu {
                bdf: Bdf::from_kfd(0, *location),
                cu_count: 38,
                num_xcc: 1,
                gfx: hipflex_kfd::GfxVersion(90_402),
                unique_id: 1,
            };
            machine.add(gpu).unwrap();
        }
        let variables = Variables {
            range: range.as_bytes(),
            visible: None,
            mask: None,
        };
        let mut gpus = Vec::new();
        cu::give(&variables, &machine, &mut |_, gpu, given| {
            gpus.push((*gpu, *given));
        })
        .unwrap();
        Limits {
            used: gpus.iter().map(|(_, given)| given.mask.count()).collect(),
            gpus,
            by_number: ByNumber::new(),
        }
    }

    #[test]
    fn partitions_of_a_board_are_alike_or_not_known() {
        let board = Bdf::from_kfd(0, 0x300);
        let parts = [0x300, 0x1000_0300];
        assert_eq!(limits("0-7", &parts).alike(board), Some(0));
        let other = limits("0000:03:00.0/1=0-3,*=0-7", &parts);
        assert_eq!(other.alike(board), None);
        assert_eq!(other.alike(Bdf::from_kfd(0, 0x400)), None);
        assert_eq!(
            limits("0-7", &[0x300, 0x400]).alike(Bdf::from_kfd(0, 0x400)),
            Some(1)
        );
    }
}
