//! A program whose functions are hooked while it calls them, and what it is told to do line by line:
//!
//! `hook-driver LIBRARY FUNCTION...` loads the library, and says `ready`.
//! * `places`: for each function its name, where in the file it begins, and its first bytes;
//! * `hook`: hooks them all. For each its name and `at +N` or `refused: WHY`, then how long it took;
//! * `call N`: calls each from two threads, N times together;
//! * `spin NAMES`: two threads call these functions, until `rest`;
//! * `totals`: for each function its name, calls, those that the hook saw, wrong results, and the result.
//!
//! An answer ends with an empty line. The functions are called with a pointer to zeros and with zeros: without a GPU
//! the HIP runtime returns an error before it looks at them.

use std::ffi::{CString, c_void};
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use hipflex_hooking::{EngineKind, Session};

#[path = "../../../../hooking/tests/common/counting.rs"]
mod counting;

/// How many threads call.
const THREADS: usize = 2;

/// What all functions are called as: six arguments in registers, six on the stack.
type Any = extern "C" fn(usize, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

struct Function {
    name: String,
    address: usize,
    /// The number of its hook.
    index: usize,
    /// What it returns; the first call may return something else.
    expected: AtomicU32,
    calls: AtomicU64,
    wrong: AtomicU64,
}

impl Function {
    fn call(&self, argument: usize) -> u32 {
        // SAFETY: an exported function, with more arguments than it takes; they are allowed values, see above.
        let function: Any = unsafe { core::mem::transmute(self.address) };
        function(argument, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    }

    fn call_and_compare(&self, argument: usize) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.call(argument) != self.expected.load(Ordering::SeqCst) {
            self.wrong.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The threads that call, and what tells them to stop.
struct Spinning {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("no library")?;
    // `-`: functions of numbers, not of pointers.
    let (path, argument) = match path.strip_prefix('-') {
        Some(path) => (path.to_string(), 5),
        None => {
            let zeros = Box::leak(vec![0_u8; 1 << 16].into_boxed_slice());
            (path, zeros.as_ptr() as usize)
        }
    };
    let functions = load(&path, arguments)?;
    for function in functions {
        function.call(argument);
        let expected = function.call(argument);
        function.expected.store(expected, Ordering::SeqCst);
    }
    say("ready")?;
    let mut spinning = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("places"), None) => places(functions)?,
            (Some("hook"), None) => hook(functions)?,
            (Some("call"), Some(times)) => call(functions, argument, times.parse()?)?,
            (Some("spin"), Some(first)) => {
                let named: Vec<_> = [first].into_iter().chain(words).collect();
                spinning = Some(spin(functions, argument, &named)?);
            }
            (Some("rest"), None) => rest(spinning.take())?,
            (Some("totals"), None) => totals(functions)?,
            _ => bail!("not understood: {line}"),
        }
        say("")?;
    }
    // The runtime's own handlers at exit are not what is tested.
    std::process::exit(0);
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn load(path: &str, names: impl Iterator<Item = String>) -> Result<&'static [Function]> {
    let path = CString::new(path)?;
    // SAFETY: a library, whose constructors are its own business.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: after a failure dlerror gives a C string.
        let why = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
        bail!("{}", why.to_string_lossy());
    }
    let mut functions = Vec::new();
    for name in names {
        let address = address(library, &name)?;
        // Not every version has every function.
        if address != 0 {
            functions.push(Function {
                name,
                address,
                index: functions.len(),
                expected: AtomicU32::new(0),
                calls: AtomicU64::new(0),
                wrong: AtomicU64::new(0),
            });
        }
    }
    ensure!(functions.len() <= counting::HOOKS, "too many functions");
    Ok(Vec::leak(functions))
}

fn address(library: *mut c_void, name: &str) -> Result<usize> {
    let name = CString::new(name)?;
    // SAFETY: an open library and a C string.
    Ok(unsafe { libc::dlsym(library, name.as_ptr()) } as usize)
}

fn places(functions: &[Function]) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for function in functions {
        let hexadecimal = |text| usize::from_str_radix(text, 16).ok();
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let (start, end) = fields.next()?.split_once('-')?;
            let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
            let offset = hexadecimal(fields.nth(1)?)?;
            (start..end)
                .contains(&function.address)
                .then(|| offset + function.address - start)
        });
        let offset = offset.with_context(|| function.name.clone())?;
        say(&format!("{} {offset}", function.name))?;
    }
    Ok(())
}

fn hook(functions: &[Function]) -> Result<()> {
    let begun = Instant::now();
    let engine = match std::env::var("HIPFLEX_TEST_ENGINE").as_deref() {
        Ok("gum") => EngineKind::Gum,
        _ => EngineKind::Detour,
    };
    let mut session = Session::new(engine)?;
    let mut lines = Vec::new();
    for function in functions {
        // SAFETY: functions of a library that is never closed; the hook passes all on.
        match unsafe { session.stage(function.address, counting::hook(function.index)) } {
            Ok(staged) => {
                counting::set_original(function.index, staged.original);
                // Where it is in memory, when it is not the function itself.
                let (entry, jump) = (staged.entry, staged.jump);
                let from = entry.wrapping_sub(function.address) as isize;
                lines.push(format!("{} at {from} {}", function.name, jump - entry));
            }
            Err(refusal) => lines.push(format!("{} refused: {refusal}", function.name)),
        }
    }
    let staged = begun.elapsed();
    // SAFETY: all originals are stored.
    unsafe { session.commit() }?;
    let all = begun.elapsed();
    for line in lines {
        say(&line)?;
    }
    say(&format!(
        "staged in {} us, all in {} us",
        staged.as_micros(),
        all.as_micros()
    ))
}

fn call(functions: &'static [Function], argument: usize, times: u64) -> Result<()> {
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS as u64)
        .map(|thread| {
            let start = Arc::clone(&start);
            thread::spawn(move || {
                start.wait();
                for function in functions {
                    for _ in (thread..times).step_by(THREADS) {
                        function.call_and_compare(argument);
                    }
                }
            })
        })
        .collect();
    join(threads)
}

fn spin(functions: &'static [Function], argument: usize, names: &[&str]) -> Result<Spinning> {
    let done = Arc::new(AtomicBool::new(false));
    let chosen: Vec<_> = functions
        .iter()
        .filter(|function| names.contains(&&*function.name))
        .collect();
    ensure!(chosen.len() == names.len(), "unknown: {names:?}");
    let start = Arc::new(Barrier::new(THREADS + 1));
    let threads = (0..THREADS)
        .map(|_| {
            let (done, start, chosen) = (Arc::clone(&done), Arc::clone(&start), chosen.clone());
            thread::spawn(move || {
                start.wait();
                while !done.load(Ordering::Relaxed) {
                    for function in &chosen {
                        function.call_and_compare(argument);
                    }
                }
            })
        })
        .collect();
    start.wait();
    Ok(Spinning { done, threads })
}

fn rest(spinning: Option<Spinning>) -> Result<()> {
    let Some(spinning) = spinning else {
        bail!("nothing spins");
    };
    spinning.done.store(true, Ordering::SeqCst);
    join(spinning.threads)
}

fn join(threads: Vec<JoinHandle<()>>) -> Result<()> {
    for thread in threads {
        if thread.join().is_err() {
            bail!("a thread panicked");
        }
    }
    Ok(())
}

fn totals(functions: &[Function]) -> Result<()> {
    for function in functions {
        let [calls, wrong] =
            [&function.calls, &function.wrong].map(|count| count.load(Ordering::SeqCst));
        let seen = counting::calls(function.index);
        let expected = function.expected.load(Ordering::SeqCst);
        say(&format!(
            "{} {calls} {seen} {wrong} {expected}",
            function.name
        ))?;
    }
    Ok(())
}
