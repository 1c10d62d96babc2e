//! ROCr's own copy and fill shaders (`core/runtime/blit_shaders` and `amd_blit_kernel.h`).
//!
//! They are bare machine code behind an `amd_kernel_code_t` (`amd_hsa_kernel_code.h`), without a name. What tells them
//! apart on every ISA is the scalar loads at their start: the furthest kernel argument that they read.

use super::copy::{self, TransferError};
use super::memory::{GpuMemory, u32_at, u64_at};

/// `sizeof(amd_kernel_code_t)`: ROCr puts the code right behind it.
const CODE_OFFSET: usize = 256;
/// As much code as can hold the loads.
const PROLOGUE: usize = 64;
/// The longest arguments, those of CopyAligned.
const ARGUMENTS: usize = 88;

/// `KernelArgs` of `amd_blit_kernel.h`.
enum Shader {
    /// Four phases of source and destination starts, then both ends.
    CopyAligned,
    /// Two phases of starts, then both ends.
    CopyMisaligned,
    /// Two starts, the end, the 32-bit value.
    Fill,
}

/// Runs the shader at a kernel object that has no code object, and tells what it did.
pub(super) fn run(memory: &dyn GpuMemory, kernel_object: u64, arguments: u64) -> String {
    let Some(shader) = recognise(memory, kernel_object) else {
        return format!("kernel {kernel_object:#x} without a code object (not executed)");
    };
    match execute(memory, shader, arguments) {
        Ok(what) => what,
        Err(error) => format!("shader {kernel_object:#x} failed: {error}"),
    }
}

fn recognise(memory: &dyn GpuMemory, kernel_object: u64) -> Option<Shader> {
    let code: [u8; CODE_OFFSET + PROLOGUE] = memory.read_array(kernel_object).ok()?;
    // amd_kernel_code_t::kernel_code_entry_byte_offset
    if u64_at(&code, 16)? != CODE_OFFSET as u64 {
        return None;
    }
    // Scalar memory instructions are two words; the encoding is in the top bits of the first
    // (gfx8 and gfx9: 110000, gfx10 and later: 111101), the offset in the low bits of the second.
    let furthest = code[CODE_OFFSET..]
        .chunks_exact(8)
        .take_while(|instruction| matches!(instruction[3] >> 2, 0b11_0000 | 0b11_1101))
        .filter_map(|instruction| u32_at(instruction, 4))
        .map(|word| word & 0xf_ffff)
        .max()?;
    match furthest {
        0x50 => Some(Shader::CopyAligned),
        0x30 => Some(Shader::CopyMisaligned),
        0x10 => Some(Shader::Fill),
        _ => None,
    }
}

fn execute(
    memory: &dyn GpuMemory,
    shader: Shader,
    arguments: u64,
) -> Result<String, TransferError> {
    let mut bytes = [0; ARGUMENTS];
    let length = match shader {
        Shader::CopyAligned => 88,
        Shader::CopyMisaligned => 56,
        Shader::Fill => 32,
    };
    memory.read(arguments, &mut bytes[..length])?;
    let argument = |index: usize| u64_at(&bytes, index * 8).unwrap_or(0);
    // Each phase goes on where the one before ended, so the whole is from the first start to the end.
    let between = |start: u64, end: u64| end.checked_sub(start).ok_or(TransferError::TooLong);
    let (name, source_end) = match shader {
        Shader::CopyAligned => ("CopyAligned", argument(8)),
        Shader::CopyMisaligned => ("CopyMisaligned", argument(4)),
        Shader::Fill => {
            let (start, bytes_filled) = (argument(0), between(argument(0), argument(2))?);
            let value = &bytes[24..28];
            copy::fill(memory, start, bytes_filled, value)?;
            return Ok(format!(
                "ROCr Fill {start:#x}, {bytes_filled} bytes of {value:x?}"
            ));
        }
    };
    let (source, destination) = (argument(0), argument(1));
    let copied = between(source, source_end)?;
    copy::linear(memory, source, destination, copied)?;
    Ok(format!(
        "ROCr {name} {source:#x} -> {destination:#x}, {copied} bytes"
    ))
}

#[cfg(test)]
mod tests;
