//! `cargo xtask demo`: the main job, shown step by step on a real HIP runtime. Each step is also
//! checked: a demo that shows something else than it says fails.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::bench::{self, Bench};
use hipflex_e2e::paths;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::runtime::Runtime;
use hipflex_e2e::shell::{Info, Shell};

use crate::{cargo, machine, rocm};

const GIB: u64 = 1 << 30;

/// Where the programs run.
enum Place {
    Emulated(Bench),
    Real(Runtime),
}

impl Place {
    fn prepare(hip: &str) -> Result<Place> {
        machine::install_tools()?;
        println!("building hipflex ...");
        cargo::build_release()?;
        if machine::has_real_gpu() {
            println!("this machine has a real GPU: the demo uses it");
            return Ok(Place::Real(Runtime::of_system()?));
        }
        let missing = machine::missing_for_node();
        if !missing.is_empty() {
            bail!(
                "there is no AMD GPU here (no /dev/kfd), and the emulated one needs {}",
                missing.join("; ")
            );
        }
        let fetched = rocm::fetch(hip)?;
        let runtime = fetched.runtimes.last().context("no runtime")?;
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
            Place::Real(_) => Command::new(program),
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

/// Shows it.
pub(crate) fn demo(hip: &str) -> Result<()> {
    let place = Place::prepare(hip)?;
    println!("\n{}\n", place.describe());

    println!("A HIP program by itself:");
    let board = Shell::start(place.program()?)?.info()?;
    say("hipMemGetInfo", &describe(board));
    ensure!(
        board.free > 4 * GIB,
        "the demo needs a GPU with more than 4 GiB free"
    );

    println!("\nThe same program with FH_MEMORY_LIMIT=4GiB LD_PRELOAD=libhipflex.so:");
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
    for line in shell.messages().lines() {
        println!("  stderr: {line}");
    }
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
