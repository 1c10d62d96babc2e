//! Instructions at a function's entry that stay where they are.
//!
//! A call runs them before it comes to the jump. So what they did must be taken back before the hook is
//! entered, or it must be nothing that the hook or its caller could notice; and the copy of them, by which the
//! original is entered, must do the same again.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// What takes a kept instruction back: so many bytes of stack are given back. `None`: it cannot be kept.
pub(crate) fn stack_taken(instruction: &Instruction) -> Option<u32> {
    use Mnemonic::{Cmp, Endbr64, Lea, Mov, Nop, Push, Sub, Test, Xor};
    let registers = || instruction.op1_kind() == OpKind::Register;
    match instruction.mnemonic() {
        Endbr64 | Nop => Some(0),
        // It reads what it does not change: stack and registers are the same when the copy runs.
        Push => (instruction.stack_pointer_increment() == -8).then_some(8),
        Sub => {
            let from_stack = instruction.op0_kind() == OpKind::Register
                && instruction.op0_register() == Register::RSP
                && matches!(
                    instruction.op1_kind(),
                    OpKind::Immediate8to64 | OpKind::Immediate32to64
                );
            let taken = instruction.try_immediate(1).ok()? as i64;
            from_stack
                .then(|| u32::try_from(taken).ok())
                .flatten()
                .filter(|taken| i32::try_from(*taken).is_ok())
        }
        // Their only effect is on a register that holds nothing at an entry, and on the flags, which do not
        // either. They read memory or registers that they do not change.
        Mov | Lea => holds_nothing(instruction).then_some(0),
        Xor => (holds_nothing(instruction)
            && registers()
            && instruction.op0_register() == instruction.op1_register())
        .then_some(0),
        Test | Cmp => Some(0),
        _ => None,
    }
}

/// Whether the first operand is a register that holds nothing at the entry of a function with a fixed number of
/// arguments: System V ABI, AMD64 supplement, figure 3.4. (r10, the static chain, is not used by C and C++.)
fn holds_nothing(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && matches!(
            instruction.op0_register().full_register(),
            Register::RAX | Register::R10 | Register::R11
        )
}

/// Whether the function asks how many vector registers its caller filled: al is read before anything wrote it.
/// Only functions with a variable number of arguments do.
pub(crate) fn asks_for_vector_registers(start: impl Iterator<Item = Instruction>) -> bool {
    let mut factory = InstructionInfoFactory::new();
    for instruction in start {
        let mut written = false;
        for used in factory.info(&instruction).used_registers() {
            // A push of the whole register keeps the stack aligned and reads nothing.
            if used.register() == Register::AL && reads(used.access()) {
                return true;
            }
            written |=
                used.register().full_register() == Register::RAX && !only_reads(used.access());
        }
        if written || instruction.flow_control() != iced_x86::FlowControl::Next {
            return false;
        }
    }
    false
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn only_reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
    )
}
