//! The two pieces of code that make a hook of a jump behind the entry.

use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock};

use crate::Refusal;
use crate::plan::Plan;

/// The most that [`to_hook`] takes.
pub(crate) const TO_HOOK: usize = 8 + 7 + 8;

/// The most that a moved instruction takes, a jump at the end included: the block encoder makes a branch that
/// does not reach any more into one over an address in memory.
const MOVED: usize = 24;

/// What the jump leads to: takes back what the kept instructions did, and goes to the hook.
///
/// `lea` changes neither flags nor memory, and there is no return address, so that shadow stacks see nothing.
/// The address stands behind the code, since the hook may be far away. `notrack`: a hook without `endbr64` may
/// be jumped to where indirect branches are tracked.
pub(crate) fn to_hook(stack: u32, hook: usize) -> Vec<u8> {
    let mut code = Vec::with_capacity(TO_HOOK);
    if stack != 0 {
        code.extend([0x48, 0x8d, 0xa4, 0x24]); // lea rsp, [rsp + disp32]
        code.extend(stack.to_le_bytes());
    }
    code.extend([0x3e, 0xff, 0x25, 0, 0, 0, 0]); // notrack jmp [rip]
    code.extend((hook as u64).to_le_bytes());
    code
}

/// The most that [`original`] takes.
pub(crate) fn original_length(plan: &Plan) -> usize {
    MOVED.saturating_mul(plan.kept.len().saturating_add(1))
}

/// What a hook calls: the kept instructions as the file has them, then `rest`, where an engine moved what is
/// under the jump. The entry itself is passed by, so a probe there does not see the call a second time.
pub(crate) fn original(plan: &Plan, rest: usize, at: usize) -> Result<Vec<u8>, Refusal> {
    let mut block = plan.kept.clone();
    encode(&mut block, rest, at).map_err(|error| Refusal::System {
        what: "cannot move its first instructions".into(),
        why: error.to_string(),
    })
}

fn encode(block: &mut Vec<Instruction>, next: usize, at: usize) -> Result<Vec<u8>, IcedError> {
    block.push(Instruction::with_branch(Code::Jmp_rel32_64, next as u64)?);
    let block = InstructionBlock::new(block, at as u64);
    BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).map(|result| result.code_buffer)
}

/// `jmp rel32` from `at` to `target`, if it reaches.
pub(crate) fn jump(at: usize, target: usize) -> Option<[u8; 5]> {
    let end = at.checked_add(5)?;
    let distance = i32::try_from((target as i64).checked_sub(end as i64)?).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}
