//! Whether the process that filled a place of the account is still there, by the same signs as in
//! `runtime/account.c`.

use std::fs;

/// A process image, as the account records it.
pub(crate) struct Identity {
    pub(crate) pid: u64,
    /// Field 22 of `/proc/PID/stat`, in ticks since boot.
    pub(crate) start_time: u64,
    /// Field 28: where the stack starts; another in each program image. 0: not known.
    pub(crate) stack_start: u64,
}

impl Identity {
    /// Whether it still has its address space. A process loses that with its last thread, a zombie has none,
    /// and after an exec it is another.
    pub(crate) fn is_alive(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else {
            return false;
        };
        // The name may contain anything; field 3 follows the last bracket.
        let Some((_, fields)) = stat.rsplit_once(')') else {
            return false;
        };
        let field = |number: usize| -> Option<u64> {
            fields
                .split_ascii_whitespace()
                .nth(number - 3)?
                .parse()
                .ok()
        };
        let same_stack = match (field(28), self.stack_start) {
            (None | Some(0), _) | (_, 0) => true,
            (Some(now), then) => now == then,
        };
        field(22) == Some(self.start_time) && same_stack && has_memory(self.pid)
    }
}

fn has_memory(pid: u64) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks.flatten().any(|task| {
        fs::read_to_string(task.path().join("statm"))
            .is_ok_and(|text| !text.starts_with("0 ") && !text.is_empty())
    })
}
