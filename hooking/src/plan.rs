//! Which instructions of a function are kept, where the jump goes, and whether it may go there.
//!
//! The rule, and why:
//! 1. The first instruction is kept; behind `endbr64` the second one, too. Probes sit on the first, or behind
//!    `endbr64`, where they are cheaper. Each must be one that can be undone or repeated ([`crate::kept`]).
//! 2. The jump lies behind. The instructions under it are moved by an engine.
//! 3. No branch of the function leads to the jump, into it, or to a kept instruction: it would go on with half
//!    an instruction, or come to the hook with other registers than a call has.
//! 4. No call is under the jump, unless it comes back behind: the threads that are in it cannot be seen.
//! 5. Memory equals the file, but for breakpoints on kept instructions.
//! 6. A function that only jumps to another is hooked there.

use core::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use crate::Refusal;
use crate::code::{Code, CodeFiles};
use crate::kept;

/// The length of a `jmp rel32`.
pub(crate) const JUMP: usize = 5;

const BREAKPOINT: u8 = 0xcc;

/// How many jumps to jumps are followed.
const MOST_JUMPS: usize = 4;

/// How a function is going to be hooked.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its entry: the first kept instruction.
    pub(crate) entry: usize,
    /// The kept instructions, as the file has them.
    pub(crate) kept: Vec<Instruction>,
    /// How many bytes of stack they take.
    pub(crate) stack: u32,
    /// The jump and the rest of the last instruction under it.
    pub(crate) patch: Range<usize>,
}

impl Plan {
    /// The plan for the function at `entry`, or for what it jumps to at once.
    pub(crate) fn follow(files: &mut CodeFiles, entry: usize) -> Result<(Self, Code), Refusal> {
        let mut entry = entry;
        for _ in 0..MOST_JUMPS {
            let code = files.code(entry)?;
            match leads_to(&code) {
                Some((target, passed)) => {
                    // Somebody may have changed where it leads.
                    compare(&code, entry..passed.next_ip() as usize, |at| {
                        at == entry || at == passed.ip() as usize
                    })?;
                    entry = target;
                }
                None => {
                    let plan = Self::new(&code)?;
                    plan.verify(&code)?;
                    return Ok((plan, code));
                }
            }
        }
        Err(Refusal::Jumps)
    }

    /// The plan by the file alone.
    pub(crate) fn new(code: &Code) -> Result<Self, Refusal> {
        if kept::asks_for_vector_registers(decoder(code).into_iter()) {
            return Err(Refusal::Variadic);
        }
        let mut decoder = decoder(code);
        let (kept, stack) = keep(&mut decoder, code)?;
        let start = decoder.ip() as usize;
        let patch = start..patch_end(&mut decoder, code)?;
        let plan = Self {
            entry: code.entry,
            kept,
            stack,
            patch,
        };
        plan.scan(code)?;
        Ok(plan)
    }

    /// All that the hook needs of the function, from the entry to the end of what the jump overwrites.
    pub(crate) fn range(&self) -> Range<usize> {
        self.entry..self.patch.end
    }

    /// Where a thread must not be while the jump is written. One at the start of the jump may: it comes from the
    /// kept instructions, as every call will, and finds the old code or the new.
    pub(crate) fn inside(&self, address: usize) -> bool {
        self.patch.start < address && address < self.patch.end
    }

    /// Memory is what the file says, apart from breakpoints on kept instructions.
    pub(crate) fn verify(&self, code: &Code) -> Result<(), Refusal> {
        compare(code, self.range(), |at| self.is_kept(at))
    }

    fn is_kept(&self, address: usize) -> bool {
        self.kept
            .iter()
            .any(|instruction| instruction.ip() as usize == address)
    }

    /// Looks at every instruction of the function for one that leads to what the hook needs.
    fn scan(&self, code: &Code) -> Result<(), Refusal> {
        for instruction in decoder(code) {
            let Some(to) = refers_to(&instruction) else {
                continue;
            };
            // A call of itself is a call as any other.
            let recursion = to == self.entry && instruction.flow_control() == FlowControl::Call;
            if self.range().contains(&to) && !recursion {
                let from = instruction.ip() as usize;
                return Err(Refusal::BranchInto { from, to });
            }
        }
        Ok(())
    }
}

/// The instructions to keep, and the stack that they take.
fn keep(decoder: &mut Decoder<'_>, code: &Code) -> Result<(Vec<Instruction>, u32), Refusal> {
    let mut kept = Vec::with_capacity(2);
    let mut stack = 0_u32;
    loop {
        let instruction = decoder.decode();
        let taken = kept::stack_taken(&instruction)
            .and_then(|taken| stack.checked_add(taken))
            .filter(|_| !instruction.is_invalid());
        stack = taken.ok_or_else(|| cannot_keep(&instruction, code))?;
        kept.push(instruction);
        if kept.len() == 2 || instruction.mnemonic() != Mnemonic::Endbr64 {
            return Ok((kept, stack));
        }
    }
}

/// Where the instructions end which the jump overwrites.
fn patch_end(decoder: &mut Decoder<'_>, code: &Code) -> Result<usize, Refusal> {
    let start = decoder.ip() as usize;
    let too_short = Refusal::TooShort {
        offset: start.wrapping_sub(code.entry),
    };
    let needed = start.saturating_add(JUMP);
    let mut returns = Vec::new();
    while (decoder.ip() as usize) < needed {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(too_short);
        }
        match instruction.flow_control() {
            // What follows may be another function.
            FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
                if (decoder.ip() as usize) < needed =>
            {
                return Err(too_short);
            }
            // `syscall` is a call here, and so are software interrupts.
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => {
                returns.push(instruction);
            }
            _ => {}
        }
    }
    let end = decoder.ip() as usize;
    if let Some(call) = returns.iter().find(|call| call.next_ip() as usize != end) {
        return Err(Refusal::ReturnsInto(call.ip() as usize));
    }
    let fits = code
        .length
        .is_none_or(|length| end <= code.entry.saturating_add(length));
    if fits { Ok(end) } else { Err(too_short) }
}

/// Compares memory with the file. Breakpoints may be where `probed` says so.
fn compare(
    code: &Code,
    range: Range<usize>,
    probed: impl Fn(usize) -> bool,
) -> Result<(), Refusal> {
    for at in range {
        let offset = at.wrapping_sub(code.entry);
        let file = code.byte(at).ok_or(Refusal::TooShort { offset })?;
        // SAFETY: `code` was read for a readable mapping, and the library stays loaded.
        let memory = unsafe { (at as *const u8).read_volatile() };
        if memory != file && !(memory == BREAKPOINT && probed(at)) {
            return Err(Refusal::Differs { at, file, memory });
        }
    }
    Ok(())
}

fn decoder(code: &Code) -> Decoder<'_> {
    Decoder::with_ip(64, code.body(), code.entry as u64, DecoderOptions::NONE)
}

/// The target of a function that is nothing but a jump, and that jump.
fn leads_to(code: &Code) -> Option<(usize, Instruction)> {
    let mut decoder = decoder(code);
    let mut instruction = decoder.decode();
    if instruction.mnemonic() == Mnemonic::Endbr64 {
        instruction = decoder.decode();
    }
    let jump = instruction.flow_control() == FlowControl::UnconditionalBranch;
    let target = jump.then(|| branch_target(&instruction)).flatten()?;
    Some((target, instruction))
}

fn branch_target(instruction: &Instruction) -> Option<usize> {
    (instruction.op0_kind() == OpKind::NearBranch64)
        .then(|| instruction.near_branch_target() as usize)
}

/// The code address in an instruction: where it branches to, or what it reads or points to by its own place.
fn refers_to(instruction: &Instruction) -> Option<usize> {
    branch_target(instruction).or_else(|| {
        instruction
            .is_ip_rel_memory_operand()
            .then(|| instruction.ip_rel_memory_address() as usize)
    })
}

fn cannot_keep(instruction: &Instruction, code: &Code) -> Refusal {
    let at = instruction.ip() as usize;
    let bytes = (at..instruction.next_ip() as usize).filter_map(|at| code.byte(at));
    let bytes: Vec<_> = bytes.map(|byte| format!("{byte:02x}")).collect();
    Refusal::CannotKeep {
        offset: at.wrapping_sub(code.entry),
        bytes: bytes.join(" "),
    }
}
