//! Limits on compute units (CUs): from what a user wrote to what each GPU gets.
//!
//! `FH_CU_RANGE` ([`CuRange`]) becomes a mask for each GPU ([`Given`]), by the rules of its architecture, and less
//! what the user's own `HSA_CU_MASK` (`variable`) leaves out. The masks go to the runtime in that same
//! variable, by the numbers that ROCr gives the GPUs which `ROCR_VISIBLE_DEVICES` leaves over (`visible`).
//!
//! A preloaded library does all this while a program starts, when other libraries may not have set themselves up.
//! So nothing here allocates, takes a lock or calls libc, but for the messages of [`CuError`]: machines are read with
//! system calls (`machine`), texts are bytes, and copies are made byte by byte (`text`) or are small enough for
//! the compiler not to call `memcpy`.

mod architecture;
mod error;
mod machine;
mod marker;
mod mask;
mod plain;
mod range;
mod text;
mod variable;
mod visible;

pub use architecture::Shape;
pub use error::CuError;
pub use machine::{CuGpu, MAX_GPUS, Machine};
pub use marker::{MARKER, Own, write_marker};
pub use mask::{CuMask, MAX_CUS};
pub use range::{CuRange, RangeError};
pub use text::Text;

/// What a GPU is given.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The compute units that queues may use.
    pub mask: CuMask,
    /// The end of the range as it was asked for, where the GPU has not got so many.
    pub asked_end: Option<u32>,
    /// Whether the range was cut (or, where nothing would have been left, widened) to whole WGPs.
    pub rounded: bool,
    /// Whether the user's own mask left something out.
    pub reduced: bool,
}

impl Given {
    /// What a user is told who does not get what he asked for, and could not know that.
    pub fn told(&self, gpu: &CuGpu) -> Option<String> {
        let (bdf, mask, count) = (gpu.bdf, &self.mask, gpu.cu_count);
        let last = count.saturating_sub(1);
        let why = match (self.asked_end, self.rounded) {
            (None, false) => return None,
            (Some(end), false) => {
                format!("there is no compute unit {end}, the last of {count} is {last}")
            }
            (None, true) => String::from("two neighbours (a WGP) are used together or not at all"),
            (Some(end), true) => format!(
                "there is no compute unit {end}, the last of {count} is {last}, and two neighbours (a WGP) are used \
                 together or not at all"
            ),
        };
        Some(format!(
            "GPU {bdf} gives compute units {mask} to this process: {why}"
        ))
    }
}

/// The variables on which the masks depend, as they stand in the environment.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    /// `FH_CU_RANGE`
    pub range: &'a [u8],
    /// `ROCR_VISIBLE_DEVICES`
    pub visible: Option<&'a [u8]>,
    /// `HSA_CU_MASK`, as the user set it.
    pub mask: Option<&'a [u8]>,
}

/// Gives each GPU that ROCr shows its mask: `each` gets ROCr's number of a GPU, the GPU, and what it is given.
///
/// # Errors
/// [`CuError`]: the range cannot be understood, does not fit the machine, or leaves a GPU nothing.
pub fn give(
    variables: &Variables<'_>,
    machine: &Machine,
    each: &mut dyn FnMut(u32, &CuGpu, &Given),
) -> Result<(), CuError> {
    let range = CuRange::parse(variables.range).map_err(CuError::Range)?;
    if let Some(missing) = range.named_and_missing(machine.gpus()) {
        return Err(CuError::NotPresent(missing));
    }
    let shown = visible::order(
        variables.visible,
        machine.gpus().iter().map(|gpu| gpu.unique_id),
    );
    let most_cus = shown.gpus(machine.gpus()).map(|gpu| gpu.cu_count).max();
    for (number, gpu) in (0..).zip(shown.gpus(machine.gpus())) {
        let own = variables
            .mask
            .and_then(|text| variable::mask_of(text, number, shown.count(), most_cus.unwrap_or(0)));
        let given = given(&range, gpu, own.as_ref())?;
        each(number, gpu, &given);
    }
    Ok(())
}

/// What a GPU is given; `own` is the user's own mask for it.
fn given(range: &CuRange<'_>, gpu: &CuGpu, own: Option<&CuMask>) -> Result<Given, CuError> {
    let (bdf, shape) = (gpu.bdf, gpu.shape());
    if shape.cu_count == 0 {
        return Err(CuError::CountUnknown(bdf));
    }
    let asked = range.of(bdf, shape.cu_count)?;
    let mut mask = asked.mask;
    let rounded = shape.round(&mut mask);
    let mut reduced = false;
    if let Some(own) = own {
        let before = mask.count();
        mask.keep(own);
        shape.drop_halves(&mut mask);
        reduced = mask.count() != before;
    }
    if mask.count() == 0 {
        return Err(CuError::NothingLeft(bdf));
    }
    if let Some(xcc) = shape.idle_xcc(&mask) {
        return Err(CuError::IdleXcc {
            bdf,
            xcc,
            num_xcc: shape.num_xcc,
        });
    }
    Ok(Given {
        mask,
        asked_end: asked.end_beyond,
        rounded,
        reduced,
    })
}

/// Writes a GPU's part of `HSA_CU_MASK`: `0:0-37,64-75`, behind a `;` where it is not the first.
pub fn write_set(text: &mut Text<'_>, number: u32, mask: &CuMask) {
    if text.len() > 0 {
        text.byte(b';');
    }
    text.number(number);
    text.byte(b':');
    mask.write(text);
}

/// Whether `HSA_CU_MASK` with this value gives each of these GPUs, which are all that ROCr shows and in its order, what it is given.
pub fn are_in_force(variable: &[u8], gpus: &[(CuGpu, Given)]) -> bool {
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let most_cus = gpus.iter().map(|(gpu, _)| gpu.cu_count).max().unwrap_or(0);
    (0..).zip(gpus).all(|(number, (_, given))| {
        let found = variable::mask_of(variable, number, count, most_cus);
        found.is_some_and(|found| found == given.mask)
    })
}

/// Which GPUs ROCr shows where `ROCR_VISIBLE_DEVICES` has this value, in its order. The GPUs are those of the machine, in the
/// order of their nodes; of each, the number in its UUID (0: it has none).
pub fn shown(visible: Option<&[u8]>, ids: &[u64]) -> impl Iterator<Item = usize> {
    visible::order(visible, ids.iter().copied()).indices()
}

#[cfg(test)]
mod tests;
