//! `cargo xtask demo`: the main job, shown step by step on a real HIP runtime. Each step is also
//! checked: a demo that shows something else than it says fails.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hipflex_e2e::bench::{self, Bench};
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::runtime::Runtime;
use hipflex_e2e::shell::{Info, Shell};
use hipflex_e2e::{environment, paths};

use crate::{cargo, machine, rocm};

const GIB: u64 = 1 << 30;

/// Where the programs run.
enum Place {
    Emulated(Bench),
    Real(Runtime),
}

impl Place {
    fn prepare(arguments: &Arguments) -> Result<Place> {
        let real = machine::has_real_gpu() && !arguments.emulated;
        if real && arguments.hip.is_some() {
            bail!(
                "--hip is for the emulated GPU: on a real one the demo uses the installed runtime \
                 (--emulated does not use the real one)"
            );
        }
        let missing = machine::missing_for_node();
        if !real && !missing.is_empty() {
            bail!(
                "the demo would use an emulated GPU, which needs {}",
                missing.join("; ")
            );
        }
        machine::install_tools()?;
        // What is missing shall be said before minutes are spent.
        if real {
            let runtime = Runtime::of_system()?;
            cargo::build_release()?;
            println!("this machine has a real GPU: the demo allocates up to 3 GiB on it");
            return Ok(Place::Real(runtime));
        }
        machine::check_workspace()?;
        let fetched = match &arguments.hip {
            Some(version) => rocm::fetch(version)?,
            // When Debian has moved on, any other will do.
            None => rocm::fetch(DEFAULT_HIP).or_else(|_| rocm::fetch("all"))?,
        };
        let runtime = fetched.runtimes.last().context("no runtime was fetched")?;
        cargo::build_release()?;
        Ok(Place::Emulated(Bench::start(&runtime.version)?))
    }

    fn runtime(&self) -> &Runtime {
        match self {
            Place::Emulated(bench) => &bench.runtime,
            Place::Real(runtime) => runtime,
        }
    }

    fn describe(&self) -> String {
        let runtime = self.runtime();
        match self {
            Place::Emulated(_) => format!(
                "AMD's HIP runtime {} ({}), unmodified, on an emulated MI210",
                runtime.version, runtime.package
            ),
            Place::Real(_) => format!("the HIP runtime {} on a real GPU", runtime.package),
        }
    }

    fn command(&self, program: &std::path::Path) -> Command {
        match self {
            Place::Emulated(bench) => bench.command(program),
            Place::Real(_) => {
                let mut command = Command::new(program);
                environment::without_cargo_libraries(&mut command);
                command
            }
        }
    }

    /// The HIP program of the demo: linked with libamdhip64, as hipcc links.
    fn program(&self) -> Result<Command> {
        Ok(self.command(&program::build("hipsh", self.runtime(), Access::Linked)?))
    }

    fn limited(&self) -> Result<Shell> {
        let mut command = self.program()?;
        bench::limit_to(&mut command, "4GiB");
        command.env("FH_BUDGET", BUDGET);
        Shell::start(command)
    }
}

const BUDGET: &str = "demo";

/// The generation of HIP which is shown unless another is asked for.
const DEFAULT_HIP: &str = "6.4";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The generation of HIP to show it with, on the emulated GPU; 6.4 if not given
    #[arg(long, value_name = "VERSION")]
    hip: Option<String>,
    /// Use the emulated GPU even if this machine has a real one
    #[arg(long)]
    emulated: bool,
}

/// Shows it.
pub(crate) fn demo(arguments: &Arguments) -> Result<()> {
    let place = Place::prepare(arguments)?;
    println!("\n{}\n", place.describe());

    println!("A HIP program by itself:");
    let board = Shell::start(place.program()?)?.info()?;
    say("hipMemGetInfo", &describe(board));
    ensure!(
        board.free > 4 * GIB,
        "the demo needs a GPU with more than 4 GiB free"
    );

    println!(
        "\nThe same program with FH_MEMORY_LIMIT=4GiB FH_BUDGET={BUDGET} LD_PRELOAD=libhipflex.so:"
    );
    let mut first = place.limited()?;
    let info = first.info()?;
    say("hipMemGetInfo", &describe(info));
    ensure!(
        info == Info {
            free: 4 * GIB,
            total: 4 * GIB
        },
        "that is not the limit"
    );
    allocate(&mut first, "a", 3, true)?;
    allocate(&mut first, "b", 2, false)?;
    tell(&first);
    say("hipMemGetInfo", &describe(first.info()?));

    println!("\nA second process of the same budget:");
    let mut second = place.limited()?;
    let info = second.info()?;
    say("hipMemGetInfo", &describe(info));
    ensure!(
        info.free == GIB,
        "it does not see what the first process holds"
    );
    allocate(&mut second, "c", 2, false)?;
    tell(&second);

    println!("\n$ hipflex status");
    show_status(&place)?;

    println!(
        "\n$ kill -9 {}   (the first process, with its 3 GiB)",
        first.pid()
    );
    first.kill()?;
    allocate(&mut second, "c", 2, true)?;
    let info = second.info()?;
    say("hipMemGetInfo", &describe(info));
    ensure!(
        info.free == 2 * GIB,
        "what the dead process held did not come back"
    );
    ensure!(
        second.end("quit")?.success(),
        "the second process did not end well"
    );
    println!("\nEvery step did what it says.");
    Ok(())
}

fn describe(info: Info) -> String {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / GIB as f64);
    format!("total {}, free {}", gib(info.total), gib(info.free))
}

fn say(call: &str, result: &str) {
    println!("  {call:<18} {result}");
}

fn allocate(shell: &mut Shell, name: &str, gib: u64, expected: bool) -> Result<()> {
    let granted = shell.malloc(name, gib * GIB)?;
    let result = if granted {
        "granted"
    } else {
        "hipErrorOutOfMemory"
    };
    say(&format!("hipMalloc {gib} GiB"), result);
    ensure!(
        granted == expected,
        "that was not to be expected: {}",
        shell.messages()
    );
    Ok(())
}

/// What the library itself said on the program's stderr.
fn tell(shell: &Shell) {
    println!("  on stderr:");
    for line in shell.messages().lines() {
        println!("{}", wrap(line, "    ", WIDTH));
    }
}

/// How wide the demo's own lines may be.
const WIDTH: usize = 80;

/// Breaks a long line at spaces, so that it can be read in a narrow terminal.
fn wrap(line: &str, indent: &str, width: usize) -> String {
    let mut lines = vec![String::from(indent)];
    for word in line.split(' ') {
        let Some(last) = lines.last_mut() else {
            continue;
        };
        let is_empty = last.len() == indent.len();
        if !is_empty && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if !is_empty {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

fn show_status(place: &Place) -> Result<()> {
    let mut command = place.command(&paths::release().join("hipflex"));
    let output = command.args(["status", "--budget", BUDGET]).output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "hipflex status: {}: {messages}",
        output.status
    );
    print!("{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn long_lines_are_broken_at_spaces() {
        assert_eq!(wrap("aa bb cc", "  ", 7), "  aa bb\n  cc");
        assert_eq!(wrap("a", "  ", 7), "  a");
        assert_eq!(wrap("longer-than-wide b", "", 4), "longer-than-wide\nb");
    }
}
