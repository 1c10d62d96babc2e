//! Functions are staged one by one, and go live together.

use core::fmt;

use crate::code::{Code, CodeFiles};
use crate::engine::Engine;
use crate::islands::Islands;
use crate::maps::Maps;
use crate::plan::{JUMP, Plan};
use crate::stop;
use crate::writer::Writer;
use crate::{EngineKind, Refusal, raw, thunk};

/// A function that was staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Calling this address is calling the function without the hook.
    pub original: usize,
    /// The entry of what was hooked: the function, or what it jumps to at once.
    pub entry: usize,
    /// Where the jump to the hook is going to be.
    pub jump: usize,
}

/// Hooks that go live together, or not at all.
///
/// A session that is dropped leaves everything as it was, but for some memory: whatever was made stays for good,
/// since a thread could be in it at any time.
pub struct Session {
    kind: EngineKind,
    engine: Box<dyn Engine>,
    files: CodeFiles,
    writer: Writer,
    islands: Islands,
    staged: Vec<Staged>,
}

struct Staged {
    plan: Plan,
    code: Code,
    /// What is written, and what is there now.
    jump: [u8; JUMP],
    before: [u8; JUMP],
}

impl Session {
    /// Begins a session with an engine. Reads `/proc/self/maps`, and tries whether code can be written to here.
    ///
    /// # Errors
    /// The build lacks the engine, or the system does not allow what hooks need: for no function then.
    pub fn new(engine: EngineKind) -> Result<Self, Refusal> {
        Ok(Self {
            kind: engine,
            engine: engine.start()?,
            files: CodeFiles::new()?,
            writer: Writer::new()?,
            islands: Islands::default(),
            staged: Vec::new(),
        })
    }

    /// Prepares a hook. Nothing is live before [`commit`](Self::commit).
    ///
    /// The hook is entered with stack and argument registers as at the function's entry. `original` may be
    /// called before the commit, too.
    ///
    /// # Errors
    /// They concern this function only; the session goes on.
    ///
    /// # Safety
    /// `function` is the entry of a function in a library that stays loaded for good, and `hook` is one with
    /// the same signature. Both take a fixed number of arguments.
    pub unsafe fn stage(&mut self, function: usize, hook: usize) -> Result<Hook, Refusal> {
        let (plan, code) = Plan::follow(&mut self.files, function)?;
        let overlaps = |other: &&Staged| {
            let (ours, others) = (plan.range(), other.plan.range());
            ours.start < others.end && others.start < ours.end
        };
        if self.staged.iter().any(|other| overlaps(&other)) {
            return Err(Refusal::Alias(plan.entry));
        }
        let near = plan.patch.start;
        let thunk = self.place(near, thunk::TO_HOOK, |_| {
            Ok(thunk::to_hook(plan.stack, hook))
        })?;
        let jump = thunk::jump(near, thunk).ok_or(Refusal::TooShort { offset: 0 })?;
        // SAFETY: the plan allows it, and the thunk is in place.
        let rest = unsafe { self.engine.prepare(near, thunk) }?;
        let original = self.place(near, thunk::original_length(&plan), |at| {
            thunk::original(&plan, rest, at)
        })?;
        // The engine has read the code from memory: only now is it certain that it read what the file has.
        plan.verify(&code)?;
        let before = code.bytes(near).ok_or(Refusal::TooShort { offset: 0 })?;
        let hook = Hook {
            original,
            entry: plan.entry,
            jump: near,
        };
        self.staged.push(Staged {
            plan,
            code,
            jump,
            before,
        });
        Ok(hook)
    }

    /// Places code in an island within reach of `near`.
    fn place(
        &mut self,
        near: usize,
        at_most: usize,
        code: impl FnOnce(usize) -> Result<Vec<u8>, Refusal>,
    ) -> Result<usize, Refusal> {
        self.islands
            .place(&self.files.maps, &self.writer, near, at_most, code)
    }

    /// Makes all staged hooks live: while no thread of the process is inside of what is overwritten. They
    /// stay for good.
    ///
    /// # Errors
    /// No hook of this session is live then.
    ///
    /// # Safety
    /// The hooks can be called from now on: their `original` was stored where they look for it.
    pub unsafe fn commit(mut self) -> Result<(), Refusal> {
        if !self.writer.is_ours() {
            return Err(Refusal::System {
                what: "cannot write to code".into(),
                why: "the session was begun by the process that this one was forked from".into(),
            });
        }
        if self.engine.writes() {
            // SAFETY: forwarded.
            unsafe { self.engine.activate() }?;
            return self.seal();
        }
        // Each page becomes the process's own with the first write to it, which takes microseconds. That is done
        // before: with the bytes that are there.
        for staged in &self.staged {
            staged.plan.verify(&staged.code)?;
            self.writer
                .write(staged.plan.patch.start, &staged.before)
                .map_err(Fault::Write)?;
        }
        let inside = |address| self.staged.iter().any(|s| s.plan.inside(address));
        match stop::while_outside(inside, || self.write_all()) {
            Ok(written) => written.map_err(Refusal::from),
            Err(failure) => Err(Refusal::Threads(failure.to_string())),
        }
    }

    /// Writes all jumps, or none. Threads are stopped meanwhile: nothing is allocated here.
    fn write_all(&self) -> Result<(), Fault> {
        // How many may be written, the last one perhaps in part.
        let mut begun = 0_usize;
        let written = self.staged.iter().try_for_each(|staged| {
            // Somebody may have come in between.
            staged.plan.verify(&staged.code).map_err(Fault::Changed)?;
            begun = begun.saturating_add(1);
            self.writer
                .write(staged.plan.patch.start, &staged.jump)
                .map_err(Fault::Write)
        });
        if written.is_err() {
            for staged in self.staged.iter().take(begun) {
                let _ = self.writer.write(staged.plan.patch.start, &staged.before);
            }
        }
        written
    }

    /// Makes pages unwritable again that an engine wrote to: the kernel places no uprobe in a writable one, and
    /// does not say so.
    fn seal(&self) -> Result<(), Refusal> {
        let maps = Maps::read()?;
        for staged in &self.staged {
            let range = staged.plan.range();
            for page in (range.start / PAGE..=range.end / PAGE).map(|n| n.saturating_mul(PAGE)) {
                if maps.at(page).is_none_or(|mapping| !mapping.writable) {
                    continue;
                }
                let protection = libc::PROT_READ | libc::PROT_EXEC;
                // SAFETY: a page of code, which gets the protection that it was loaded with.
                if unsafe { libc::mprotect(page as *mut _, PAGE, protection) } != 0 {
                    let error = std::io::Error::last_os_error();
                    let what = "its pages stay writable, so that no uprobe can see it";
                    return Err(Refusal::system(what, &error));
                }
            }
        }
        Ok(())
    }
}

const PAGE: usize = 0x1000;

/// Why jumps were not written. Holds nothing on the heap.
enum Fault {
    Changed(Refusal),
    Write(core::ffi::c_int),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Changed(refusal) => refusal,
            Fault::Write(error) => Self::system("cannot write to code", &raw::error(error)),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("engine", &self.kind)
            .field("staged", &self.staged.len())
            .finish_non_exhaustive()
    }
}
