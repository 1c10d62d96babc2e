//! The blit kernels of ROCclr (the lower half of the HIP runtime): recognised by name, and their arguments by name,
//! so that builds for any ISA and with any argument order work.
//!
//! The kernels and their arguments are those of ROCclr's `device/blitcl.cpp`; `rocm/rocblit.cpp` sets them. Where
//! the signature changed with a release, the presence of an argument tells which it is.

use super::code_object::Kernel;
use super::copy::{self, Extent, Side};
use super::kernel_arguments::{Arguments, BlitError, plus, times};
use super::memory::{GpuMemory, offset};

const PREFIX: &str = "__amd_rocclr_";
/// Longest fill pattern: HIP's is at most 16 bytes, a row of a larger one is a client's mistake.
const LONGEST_PATTERN: u64 = 4096;

/// Runs a blit kernel and tells what it did; other kernels do nothing. `None`: it waits for memory to change.
pub(super) fn run(memory: &dyn GpuMemory, kernel: &Kernel, segment: u64) -> Option<String> {
    let name = &kernel.name;
    let arguments = Arguments {
        memory,
        kernel,
        segment,
    };
    let result = match name.strip_prefix(PREFIX) {
        Some("copyBuffer" | "copyBufferAligned") => arguments.copy_buffer(),
        Some("copyBufferRect") => arguments.copy_rectangle(1),
        // Everything but the addresses counts 32-bit words.
        Some("copyBufferRectAligned") => arguments.copy_rectangle(4),
        Some("fillBufferAligned") => arguments.fill_buffer(),
        Some("fillBufferAligned2D") => arguments.fill_rectangle(),
        Some("copyBufferToImage") => arguments.copy_to_image(),
        Some("copyImageToBuffer") => arguments.copy_from_image(),
        Some("copyImage") => arguments.copy_image(),
        Some("streamOpsWrite") => arguments.stream_write(),
        Some("streamOpsWait") => match arguments.stream_wait() {
            Ok(false) => return None,
            done => done.map(|_| "the condition holds".to_owned()),
        },
        _ => return Some(format!("{name} (not executed)")),
    };
    Some(match result {
        Ok(what) => format!("{name} {what}"),
        Err(error) => format!("{name} failed: {error}"),
    })
}

impl Arguments<'_> {
    fn fill_target(&self) -> Result<(u64, u64), BlitError> {
        const BY_TYPE: [(&str, u64); 4] = [
            ("bufUChar", 1),
            ("bufUShort", 2),
            ("bufUInt", 4),
            ("bufULong", 8),
        ];
        self.typed_pointer(&BY_TYPE)
    }

    /// The fill pattern: `count` elements of `element` bytes.
    fn pattern(&self, count: u64, element: u64) -> Result<Vec<u8>, BlitError> {
        let bytes = count
            .checked_mul(element)
            .filter(|bytes| (1..=LONGEST_PATTERN).contains(bytes))
            .ok_or(BlitError::Contradiction)?;
        let mut pattern = vec![0; bytes as usize];
        self.memory.read(self.number("pattern")?, &mut pattern)?;
        Ok(pattern)
    }

    fn copy_buffer(&self) -> Result<String, BlitError> {
        let (source, destination) = (self.either("src", "srcI")?, self.either("dst", "dstI")?);
        let size = self.number("size")?;
        let (source, destination, bytes) = if self.has("srcOrigin") {
            // Up to 6.3: in elements of `alignment` bytes, or in words with `remain` bytes in the last one.
            let (element, bytes) = if self.has("alignment") {
                let element = self.number("alignment")?;
                (element, times(size, element)?)
            } else {
                let last = self.number("remain")?;
                let whole = times(size.saturating_sub(1), 4)?;
                (1, if size == 0 { 0 } else { plus(whole, last)? })
            };
            let from = times(self.number("srcOrigin")?, element)?;
            let to = times(self.number("dstOrigin")?, element)?;
            (offset(source, from)?, offset(destination, to)?, bytes)
        } else {
            // Since then: pointers that include the origin, and bytes.
            (source, destination, size)
        };
        copy::linear(self.memory, source, destination, bytes)?;
        Ok(format!("{source:#x} -> {destination:#x}, {bytes} bytes"))
    }

    /// `srcRect` and `dstRect` are row pitch, slice pitch and origin; `size` is bytes (or words), rows, slices.
    fn copy_rectangle(&self, element: u64) -> Result<String, BlitError> {
        let side = |buffer: &'static str, rectangle: &'static str| -> Result<Side, BlitError> {
            let [row_pitch, slice_pitch, origin, _] = self.ulong4(rectangle)?;
            Ok(Side {
                start: offset(self.number(buffer)?, times(origin, element)?)?,
                row_pitch: times(row_pitch, element)?,
                slice_pitch: times(slice_pitch, element)?,
            })
        };
        let (source, destination) = (side("src", "srcRect")?, side("dst", "dstRect")?);
        let [width, rows, slices, _] = self.ulong4("size")?;
        let extent = Extent {
            row_bytes: times(width, element)?,
            rows,
            slices,
        };
        copy::rectangle(self.memory, source, destination, extent)?;
        Ok(format!("{source:x?} -> {destination:x?}, {extent:?}"))
    }

    fn fill_buffer(&self) -> Result<String, BlitError> {
        let (start, bytes, pattern) = if self.has("end_ptr") {
            // Since 5.5: one buffer and its end.
            let (start, end) = (self.number("buf")?, self.number("end_ptr")?);
            let bytes = end.checked_sub(start).ok_or(BlitError::Contradiction)?;
            let pattern = self.pattern(self.number("pattern_size")?, self.number("alignment")?)?;
            (start, bytes, pattern)
        } else {
            // Before: the pointer that is set tells the element.
            let (buffer, element) = self.fill_target()?;
            let pattern = self.pattern(self.number("patternSize")?, element)?;
            let start = offset(buffer, times(self.number("offset")?, element)?)?;
            (
                start,
                times(self.number("size")?, pattern.len() as u64)?,
                pattern,
            )
        };
        copy::fill(self.memory, start, bytes, &pattern)?;
        Ok(format!("{start:#x}, {bytes} bytes of {pattern:x?}"))
    }

    fn fill_rectangle(&self) -> Result<String, BlitError> {
        let (buffer, element) = self.fill_target()?;
        let pattern = self.pattern(self.number("patternSize")?, element)?;
        let start = offset(buffer, times(self.number("offset")?, element)?)?;
        let row_pitch = times(self.number("pitch")?, element)?;
        let extent = Extent {
            row_bytes: times(self.number("width")?, pattern.len() as u64)?,
            rows: self.number("height")?,
            slices: 1,
        };
        let side = Side {
            start,
            row_pitch,
            slice_pitch: 0,
        };
        copy::fill_rectangle(self.memory, side, extent, &pattern)?;
        Ok(format!("{side:x?}, {extent:?} of {pattern:x?}"))
    }

    fn stream_write(&self) -> Result<String, BlitError> {
        let (va, bytes) = self.typed_pointer(&[("ptrInt", 4), ("ptrUlong", 8)])?;
        let value = self.number("value")?;
        self.memory
            .write(va, &value.to_le_bytes()[..bytes as usize])?;
        Ok(format!("{va:#x} = {value:#x}"))
    }

    /// Whether what a stream waits for holds. On a GPU this kernel would spin.
    fn stream_wait(&self) -> Result<bool, BlitError> {
        let (va, bytes) = self.typed_pointer(&[("ptrInt", 4), ("ptrUlong", 8)])?;
        let mut current = [0; 8];
        self.memory.read(va, &mut current[..bytes as usize])?;
        let current = u64::from_le_bytes(current) & self.number("mask")?;
        let value = self.number("value")?;
        // hipStreamWaitValueGte, Eq, And, Nor
        Ok(match self.number("flags")? {
            0 => current >= value,
            1 => current == value,
            2 => current & value != 0,
            3 => {
                let width = if bytes == 4 {
                    u64::from(u32::MAX)
                } else {
                    u64::MAX
                };
                !(current | value) & width != 0
            }
            _ => return Err(BlitError::Contradiction),
        })
    }
}

#[cfg(test)]
mod tests;
