//! Every way to a function of a real runtime, with every engine: each call is counted exactly once.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::exports;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

on_each_runtime!(
    each_call_is_counted_once,
    each_function_has_the_engine_that_it_should_have,
    what_comes_out_is_as_without_hipflex,
);

const ENGINES: [&str; 4] = ["auto", "table", "detour", "none"];
/// (A runtime that is itself opened with RTLD_DEEPBIND crashes at its first call, with and without hipflex; a plugin
/// that is linked to one, `deep`, does not. hipGetProcAddress of Debian's 6.4.3 and 7.2.4 answers every question with
/// hipErrorInvalidValue.)
const WAYS: [&str; 6] = ["linked", "dlsym", "dlvsym", "raw", "plain", "deep"];

fn has_table(version: &str) -> bool {
    !version.starts_with('5')
}

/// Whether calls by this way come to a hook: by the names of functions alone not all do.
fn comes_to_a_hook(version: &str, engine: &str, way: &str) -> bool {
    let below = match engine {
        "auto" | "detour" => true,
        "table" => has_table(version),
        _ => false,
    };
    below || !matches!(way, "raw" | "deep")
}

/// A `hipsh` that comes to HIP in this way.
fn shell(bench: &Bench, way: &str, engine: Option<&str>) -> Result<Shell> {
    let mut command = match way {
        "linked" => bench.program("hipsh", Access::Linked)?,
        "plain" | "deep" => {
            let plugin = program::build("hipsh", &bench.runtime, Access::Plugin)?;
            let mut command = bench.program("plugin_host", Access::Dlopen)?;
            command.arg(plugin).arg(way);
            command
        }
        way => {
            let mut command = bench.program("hipsh", Access::Dlopen)?;
            command.env("HIP_WAY", way);
            command
        }
    };
    if let Some(engine) = engine {
        limit_to(&mut command, "1GiB");
        command.env("FH_HOOK_ENGINE", engine);
    }
    Shell::start(command)
}

fn each_call_is_counted_once(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for engine in ENGINES {
        for way in WAYS {
            let case = format!("{engine}, {way}");
            let mut shell = shell(&bench, way, Some(engine)).context(case.clone())?;
            let hooked = comes_to_a_hook(version, engine, way);
            ensure!(
                shell.malloc("a", 600 * MIB).context(case.clone())?,
                "{case}: {}",
                shell.messages()
            );
            ensure!(
                shell.malloc("b", 600 * MIB)? != hooked,
                "{case}: {}",
                shell.messages()
            );
            ensure!(
                shell.say("hipMallocPitch p 1000 50")?.starts_with("ok"),
                "{case}"
            );
            ensure!(
                shell
                    .say("hipMallocArray r 32 0 0 0 2 1024 1024 0")?
                    .starts_with("ok"),
                "{case}"
            );
            shell.free("a")?;
            ensure!(
                shell.malloc("c", 300 * MIB)?,
                "{case}: {}",
                shell.messages()
            );
            if hooked {
                ensure!(shell.info()?.total == GIB, "{case}: {:?}", shell.info());
                let status = status::of(&bench)?;
                let budget = status.budget("default")?;
                let rows = budget.booked.checked_sub(304 * MIB).context(case.clone())?;
                ensure!(
                    rows % 50 == 0 && rows / 50 >= 1000 && rows < MIB,
                    "{case}: {} bytes",
                    budget.booked
                );
            }
            ensure!(shell.end("quit")?.success(), "{case}");
        }
    }
    Ok(())
}

/// How many of the hooked functions the bench's runtime has. (A row of the table begins with the function's name.)
fn present(bench: &Bench) -> Result<u64> {
    let rows = include_str!("../../../enforcer/src/hook_table.rs").lines();
    let names = rows.filter_map(|line| {
        let row = line
            .strip_prefix("    ")
            .filter(|row| row.starts_with("hip"))?;
        row.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    });
    let exports = exports::listed(&bench.runtime.version)?;
    let has = |name: &&str| exports.iter().any(|export| export.name == *name);
    Ok(names.filter(has).count() as u64)
}

/// From the exports of the real runtimes: which engine each of our functions gets.
fn each_function_has_the_engine_that_it_should_have(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for engine in ENGINES {
        let mut shell = shell(&bench, "linked", Some(engine))?;
        ensure!(shell.malloc("a", MIB)?);
        let budget = status::of(&bench)?.budget("default")?;
        let hooks = &budget.processes.first().context("no process")?.hooks;
        let of = |engine: &str| hooks.get(engine).copied().unwrap_or(0);
        let all: u64 = hooks.values().sum();
        let case = format!("{engine}: {hooks:?}");
        // hipGetDeviceProperties has no slot of its own.
        let without_slot = u64::from(has_table(version));
        let present = present(&bench)?;
        match engine {
            "none" => ensure!(of("exports") == all, "{case}"),
            "detour" => ensure!(of("detour") == present, "{case}, {present} present"),
            "table" if has_table(version) => {
                ensure!(of("table") == present - without_slot, "{case}");
                ensure!(of("exports") == all - of("table"), "{case}");
            }
            "table" => {
                ensure!(of("exports") == all, "{case}");
                ensure!(
                    shell
                        .messages()
                        .contains("FH_HOOK_ENGINE=table cannot be used"),
                    "{case}"
                );
            }
            _ if has_table(version) => {
                ensure!(of("table") == present - without_slot, "{case}");
                ensure!(of("detour") == without_slot, "{case}");
            }
            _ => ensure!(of("detour") == present, "{case}, {present} present"),
        }
        ensure!(shell.end("quit")?.success());
    }
    Ok(())
}

/// The same commands, without hipflex and with each engine: every answer is the same.
fn what_comes_out_is_as_without_hipflex(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let commands = [
        "device 0",
        "malloc a 1048576",
        "hipMallocPitch p 1000 50",
        "hipMalloc3D q 1000 50 4",
        "hipMallocManaged m 5242881 1",
        "hipMallocArray r 32 0 0 0 2 1024 1024 0",
        "hipFreeArray r",
        "hipFree m",
        "hipFree q",
        "hipFree p",
        "free a",
        "last-error",
        "free-null",
        "device 99",
        "last-error",
        "device 0",
    ];
    let answers = |shell: &mut Shell| -> Result<Vec<String>> {
        commands.iter().map(|command| shell.say(command)).collect()
    };
    let native = answers(&mut shell(&bench, "linked", None)?)?;
    for engine in ENGINES {
        for way in ["linked", "dlsym", "deep"] {
            let hooked = answers(&mut shell(&bench, way, Some(engine))?)
                .context(format!("{engine}, {way}"))?;
            ensure!(
                hooked == native,
                "{engine}, {way}: {hooked:?} not {native:?}"
            );
        }
    }
    Ok(())
}
