//! The GPUs of this machine, as far as masks depend on them, read with system calls alone.
//!
//! It is what [`crate::Topology`] reads, and ROCr (`topology.c` of libhsakmt): nodes with SIMDs whose render node is there, in
//! the order of their numbers.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::architecture::Shape;
use super::error::CuError;
use super::mask::MAX_CUS;
use super::plain;
use super::text::{Text, number, same, split, trim};
use crate::bdf::Bdf;
use crate::gfx::GfxVersion;
use crate::root::Root;

/// The most GPUs that are looked at.
pub const MAX_GPUS: usize = 64;
/// The most nodes that are looked at: those of CPUs count, too.
const MAX_NODES: u32 = 256;
/// sysfs files are at most one page.
const PAGE: usize = 4096;
/// The longest path of a file here, with the root of a test.
const LONGEST_PATH: usize = 512;

const ENOENT: i32 = 2;
/// The device cgroup of a container hides the node.
const EPERM: i32 = 1;

/// One GPU that ROCr can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CuGpu {
    /// Its address.
    pub bdf: Bdf,
    /// How many compute units it has; 0 where the driver does not say.
    pub cu_count: u32,
    /// How many XCCs work as this one GPU.
    pub num_xcc: u32,
    /// The instruction set; 0 where the driver does not say.
    pub gfx: GfxVersion,
    /// The number in its UUID; 0: it has none.
    pub unique_id: u64,
}

impl CuGpu {
    /// How its compute units hang together.
    pub fn shape(&self) -> Shape {
        Shape {
            cu_count: self.cu_count.min(MAX_CUS),
            num_xcc: self.num_xcc.max(1),
            pairs: self.gfx.is_rdna(),
        }
    }

    /// All zero, so that a machine costs no place in a file and, until it is read, no memory.
    const NONE: Self = Self {
        bdf: Bdf::NOWHERE,
        cu_count: 0,
        num_xcc: 0,
        gfx: GfxVersion(0),
        unique_id: 0,
    };
}

/// The GPUs of a machine, in the order of their nodes.
#[derive(Debug)]
pub struct Machine {
    gpus: [CuGpu; MAX_GPUS],
    count: usize,
}

impl Machine {
    /// One without GPUs; [`Machine::read`] fills it.
    pub const fn empty() -> Self {
        Self {
            gpus: [CuGpu::NONE; MAX_GPUS],
            count: 0,
        }
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[CuGpu] {
        self.gpus.get(..self.count).unwrap_or_default()
    }

    /// Adds a GPU.
    ///
    /// # Errors
    /// There are too many.
    pub fn add(&mut self, gpu: CuGpu) -> Result<(), CuError> {
        let place = self.gpus.get_mut(self.count).ok_or(CuError::TooMuch)?;
        *place = gpu;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Reads the machine below the directory `root`, which has `sys` and `dev` in it; `/` is `b""`.
    ///
    /// # Errors
    /// [`CuError::Unreadable`], [`CuError::TooMuch`]
    pub fn read(&mut self, root: &[u8]) -> Result<(), CuError> {
        self.count = 0;
        for node in 0..MAX_NODES {
            match read_node(root, node) {
                Ok(Some(gpu)) => self.add(gpu)?,
                Ok(None) | Err(EPERM) => {}
                Err(ENOENT) if node > 0 => return Ok(()),
                Err(error) => return Err(CuError::Unreadable(error)),
            }
        }
        Ok(())
    }

    /// Reads the machine below `root`.
    ///
    /// # Errors
    /// As for [`Machine::read`].
    pub fn read_below(&mut self, root: &Root) -> Result<(), CuError> {
        let path = root.path("");
        let bytes = OsStr::as_bytes(path.as_os_str());
        self.read(bytes.strip_suffix(b"/").unwrap_or(bytes))
    }
}

/// The GPU of a node; `None`: it is a CPU, or ROCr does not show it.
fn read_node(root: &[u8], node: u32) -> Result<Option<CuGpu>, i32> {
    let mut page = [const { MaybeUninit::<u8>::uninit() }; PAGE];
    let file = |name: &[u8], path: &mut Text<'_>| {
        path.bytes(root);
        path.bytes(b"/sys/class/kfd/kfd/topology/nodes/");
        path.number(node);
        path.byte(b'/');
        path.bytes(name);
    };
    let id = with_path(&|path| file(b"gpu_id", path), |path| {
        plain::read(path, &mut page)
    })?;
    if number(trim(id)).is_none_or(|id| id == 0) {
        return Ok(None);
    }
    let properties = with_path(&|path| file(b"properties", path), |path| {
        plain::read(path, &mut page)
    })?;
    let facts = Facts::of(properties);
    let render = |path: &mut Text<'_>| {
        path.bytes(root);
        path.bytes(b"/dev/dri/renderD");
        path.number(facts.render_minor);
    };
    let is_shown = facts.simd_count > 0
        && facts.render_minor > 0
        && with_path(&render, |path| Ok::<_, i32>(plain::exists(path)))?;
    Ok(is_shown.then(|| facts.gpu()))
}

/// Makes a path and lets it be used.
#[inline]
fn with_path<T>(
    write: &dyn Fn(&mut Text<'_>),
    step: impl FnOnce(&CStr) -> Result<T, i32>,
) -> Result<T, i32> {
    const ENAMETOOLONG: i32 = 36;
    let mut place = [const { MaybeUninit::<u8>::uninit() }; LONGEST_PATH];
    // SAFETY: only what `Text` has written is read below, and writing needs nothing that is there before.
    let place = unsafe { &mut *(core::ptr::from_mut(&mut place) as *mut [u8; LONGEST_PATH]) };
    let mut path = Text::new(place);
    write(&mut path);
    path.byte(0);
    let path = Some(path.written()).filter(|_| !path.is_cut());
    let path = path.and_then(|path| CStr::from_bytes_with_nul(path).ok());
    step(path.ok_or(ENAMETOOLONG)?)
}

/// What the `properties` of a node say, as far as it matters here.
#[derive(Clone, Copy)]
struct Facts {
    simd_count: u32,
    simd_per_cu: u32,
    num_xcc: u32,
    gfx: u32,
    domain: u32,
    location: u32,
    render_minor: u32,
    unique_id: u64,
}

impl Facts {
    fn of(properties: &[u8]) -> Self {
        let mut facts = Self {
            simd_count: 0,
            simd_per_cu: 0,
            num_xcc: 1,
            gfx: 0,
            domain: 0,
            location: 0,
            render_minor: 0,
            unique_id: 0,
        };
        let mut rest = Some(properties);
        while let Some(text) = rest {
            let (line, behind) = split(text, b'\n');
            rest = behind;
            let (name, Some(value)) = split(line, b' ') else {
                continue;
            };
            let value = number(trim(value)).unwrap_or(0);
            let small = u32::try_from(value).unwrap_or(0);
            for (known, place) in [
                (&b"simd_count"[..], &mut facts.simd_count),
                (b"simd_per_cu", &mut facts.simd_per_cu),
                (b"num_xcc", &mut facts.num_xcc),
                (b"gfx_target_version", &mut facts.gfx),
                (b"domain", &mut facts.domain),
                (b"location_id", &mut facts.location),
                (b"drm_render_minor", &mut facts.render_minor),
            ] {
                if same(name, known) {
                    *place = small;
                }
            }
            if same(name, b"unique_id") {
                facts.unique_id = value;
            }
        }
        facts
    }

    fn gpu(self) -> CuGpu {
        CuGpu {
            bdf: Bdf::from_kfd(self.domain, self.location),
            cu_count: self.simd_count.checked_div(self.simd_per_cu).unwrap_or(0),
            num_xcc: self.num_xcc.max(1),
            gfx: GfxVersion(self.gfx),
            unique_id: self.unique_id,
        }
    }
}
