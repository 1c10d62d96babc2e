//! AMD's own tools under a limit, unmodified: they show the limit, and what counts against it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::{Access, build_with};
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;
use hipflex_e2e::tool::{foreign, output, python};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

on_each_runtime!(
    rocm_smi_shows_the_limit_and_the_budget_s_use,
    hipflex_run_takes_a_tool_into_a_budget,
    rocm_smi_alone_leaves_no_trace,
    each_gpu_is_shown_by_its_own_limit,
    amd_smi_shows_the_limit_and_the_budget_s_use,
    a_python_program_sees_the_same_in_every_function,
    a_linked_program_sees_the_same,
);

/// The boards that a runtime knows.
fn profiles(version: &str) -> &'static [&'static str] {
    if version == "5.2" {
        &["mi210"]
    } else {
        &["mi210", "mi300x"]
    }
}

/// Two GPUs, of which a program holds 3 GiB of 4 on the first.
fn busy(version: &str, profile: &str) -> Result<(Bench, Shell)> {
    let bench = Bench::with(version, |node| node.profile(profile).gpus(2))?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(shell.malloc("a", 3 * GIB)?);
    Ok((bench, shell))
}

/// What is charged on a GPU, in bytes.
fn charged(bench: &Bench, gpu: usize) -> Result<u64> {
    let status = status::of(bench)?;
    let account = &status.budget("default")?.gpus[gpu];
    Ok(account.booked + account.overhead)
}

/// A script of the runtime's suite.
struct Script<'a> {
    bench: &'a Bench,
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl<'a> Script<'a> {
    /// `None` if the suite has none such.
    fn find(bench: &'a Bench, path: &str) -> Result<Option<Self>> {
        let path = bench.runtime.file(path);
        path.map(|path| Self::at(bench, path)).transpose()
    }

    fn at(bench: &'a Bench, path: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self {
            bench,
            path,
            folder,
        })
    }

    fn rocm_smi(bench: &'a Bench) -> Result<Self> {
        Self::find(bench, "usr/libexec/rocm_smi/rocm_smi.py")?.context("each suite has rocm-smi")
    }

    /// Bookworm has no amd-smi.
    fn amd_smi(bench: &'a Bench) -> Result<Option<Self>> {
        let found = Self::find(bench, "usr/libexec/amdsmi_cli/amdsmi_cli.py")?;
        ensure!(found.is_some() || bench.runtime.suite == "bookworm");
        Ok(found)
    }

    /// What it prints. Some end with a status that says that a value is not available.
    fn text(&self, arguments: &str, limit: Option<&str>) -> Result<String> {
        let mut command = python(self.bench, &self.path, self.folder.path())?;
        command.args(arguments.split_whitespace());
        if let Some(limit) = limit {
            limit_to(&mut command, limit);
        }
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code().is_some() && !errors.contains("hipflex"),
            "{arguments}: {}: {errors}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn json(&self, arguments: &str, limit: Option<&str>) -> Result<Value> {
        let text = self.text(&format!("{arguments} --json"), limit)?;
        serde_json::from_str(&text).with_context(|| format!("{arguments}: {text}"))
    }
}

fn number(value: &Value) -> Result<u64> {
    let text = value.as_str().map(str::to_owned);
    let text = text.unwrap_or_else(|| value.to_string());
    text.parse().with_context(|| format!("no number: {value}"))
}

fn rocm_smi_shows_the_limit_and_the_budget_s_use(version: &str) -> Result<()> {
    for profile in profiles(version) {
        let (bench, mut shell) = busy(version, profile)?;
        let script = Script::rocm_smi(&bench)?;
        let ask = "--showmeminfo vram vis_vram gtt";
        let native = script.json(ask, None)?;
        // So that the overhead is up to date.
        let info = shell.info()?;
        let limited = script.json(ask, Some("4GiB"))?;
        for (gpu, card) in ["card0", "card1"].into_iter().enumerate() {
            let (native, limited) = (&native[card], &limited[card]);
            ensure!(number(&native["VRAM Total Memory (B)"])? > 60 * GIB);
            for kind in ["VRAM", "VIS_VRAM"] {
                let total = number(&limited[format!("{kind} Total Memory (B)")])?;
                let used = number(&limited[format!("{kind} Total Used Memory (B)")])?;
                let expected = (4 * GIB, charged(&bench, gpu)?);
                assert_eq!((total, used), expected, "{profile} {card} {kind}");
            }
            for host in ["GTT Total Memory (B)", "GTT Total Used Memory (B)"] {
                assert_eq!(limited[host], native[host], "{profile} {card}");
            }
        }
        let used = number(&limited["card0"]["VRAM Total Used Memory (B)"])?;
        assert_eq!(used, info.total - info.free, "{profile}");
        // The overview, of which only that is another.
        let (native, limited) = (script.text("", None)?, script.text("", Some("4GiB"))?);
        let differing: Vec<_> = limited
            .lines()
            .zip(native.lines())
            .filter(|(limited, native)| limited != native)
            .map(|(limited, _)| limited)
            .collect();
        assert_eq!(differing.len(), 1, "{native}{limited}");
        ensure!(differing[0].contains(" 75%"), "{limited}");
        // What is refused is not in use.
        ensure!(!shell.malloc("b", 2 * GIB)?);
        let limited = script.json("--showmeminfo vram", Some("4GiB"))?;
        let used = number(&limited["card0"]["VRAM Total Used Memory (B)"])?;
        assert_eq!(used, charged(&bench, 0)?);
        assert_eq!(status::of(&bench)?.budget("default")?.processes.len(), 1);
    }
    Ok(())
}

fn hipflex_run_takes_a_tool_into_a_budget(version: &str) -> Result<()> {
    let (bench, mut shell) = busy(version, "mi210")?;
    shell.info()?;
    let script = Script::rocm_smi(&bench)?;
    let tool = python(&bench, &script.path, script.folder.path())?;
    for (budget, used) in [("default", charged(&bench, 0)?), ("another", 0)] {
        let mut command = bench.hipflex(&["run", "--memory", "4GiB", "--budget", budget, "--"]);
        command
            .arg(tool.get_program())
            .args(tool.get_args())
            .args(["--showmeminfo", "vram", "--json"])
            .envs(
                tool.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        let shown: Value = serde_json::from_slice(&output(command)?)?;
        assert_eq!(number(&shown["card0"]["VRAM Total Memory (B)"])?, 4 * GIB);
        assert_eq!(number(&shown["card0"]["VRAM Total Used Memory (B)"])?, used);
    }
    Ok(())
}

fn rocm_smi_alone_leaves_no_trace(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let script = Script::rocm_smi(&bench)?;
    let native = script.json("--showmeminfo vram", None)?;
    let board = number(&native["card0"]["VRAM Total Memory (B)"])?;
    for (limit, total) in [
        ("4GiB", 4 * GIB),
        ("50%", board / 2),
        ("0000:03:00.0=3GiB", 3 * GIB),
        ("999GiB", board),
        ("unlimited", board),
    ] {
        let limited = script.json("--showmeminfo vram", Some(limit))?;
        let shown = number(&limited["card0"]["VRAM Total Memory (B)"])?;
        assert_eq!(shown, total, "{limit}");
        if total < board {
            assert_eq!(
                limited["card0"]["VRAM Total Used Memory (B)"], "0",
                "{limit}"
            );
        } else {
            // The driver's own.
            assert_eq!(limited, native, "{limit}");
        }
    }
    let ledgers = bench.node.path("/dev/shm/hipflex");
    ensure!(!ledgers.exists(), "{} was made", ledgers.display());
    Ok(())
}

fn each_gpu_is_shown_by_its_own_limit(version: &str) -> Result<()> {
    let boards = [64 * GIB, 16 * GIB, 8 * GIB];
    let bench = Bench::with(version, |node| node.vram_of_each(&boards))?;
    let script = Script::rocm_smi(&bench)?;
    let ask = "--showmeminfo vram --showbus";
    let limit = "0000:26:00.0=50%,0000:03:00.0=2GiB,*=16GiB";
    let (native, limited) = (script.json(ask, None)?, script.json(ask, Some(limit))?);
    for card in ["card0", "card1", "card2"] {
        let total = number(&limited[card]["VRAM Total Memory (B)"])?;
        let board = number(&native[card]["VRAM Total Memory (B)"])?;
        let bus = limited[card]["PCI Bus"].as_str().context("no bus")?;
        let expected = match bus {
            "0000:03:00.0" => 2 * GIB,
            "0000:26:00.0" => board / 2,
            _ => board,
        };
        assert_eq!(total, expected, "{bus}");
    }
    Ok(())
}

fn amd_smi_shows_the_limit_and_the_budget_s_use(version: &str) -> Result<()> {
    for profile in profiles(version) {
        let (bench, mut shell) = busy(version, profile)?;
        let Some(script) = Script::amd_smi(&bench)? else {
            return Ok(());
        };
        shell.info()?;
        let used = [charged(&bench, 0)? / MIB, charged(&bench, 1)? / MIB];
        // The one of 6.1 has no use in its monitor, with or without a limit: the node cannot tell it.
        let has_monitor = bench.runtime.generation() >= 600;

        let native = script.json("static --vram", None)?;
        let limited = script.json("static --vram", Some("4GiB"))?;
        for gpu in [0, 1] {
            let (native, limited) = (
                &of_gpu(&native, gpu)["vram"],
                &of_gpu(&limited, gpu)["vram"],
            );
            ensure!(in_mib(&native["size"])? > 60 << 10, "{native}");
            assert_eq!(in_mib(&limited["size"])?, 4096, "{profile}");
            let mut others = limited.clone();
            others["size"] = native["size"].clone();
            assert_eq!(others, *native, "{profile}: the other fields");
        }

        let native = script.json("metric --mem-usage", None)?;
        let limited = script.json("metric --mem-usage", Some("4GiB"))?;
        for gpu in [0, 1] {
            let of = |answer| &of_gpu(answer, gpu)["mem_usage"];
            let (native, limited) = (of(&native), of(&limited));
            for kind in ["vram", "visible_vram"] {
                let of = |what: &str| in_mib(&limited[format!("{what}_{kind}")]);
                let shown = (of("total")?, of("used")?, of("free")?);
                let expected = (4096, used[gpu], 4096 - used[gpu]);
                assert_eq!(shown, expected, "{profile} {gpu} {kind}");
            }
            for what in ["total_gtt", "used_gtt", "free_gtt"] {
                assert_eq!(limited[what], native[what], "{profile}");
            }
        }

        if has_monitor {
            let limited = script.json("monitor --vram-usage", Some("4GiB"))?;
            for gpu in [0, 1] {
                let limited = of_gpu(&limited, gpu);
                let shown = (
                    in_mib(&limited["vram_total"])?,
                    in_mib(&limited["vram_used"])?,
                );
                assert_eq!(shown, (4096, used[gpu]), "{profile} {gpu}");
            }
            let monitor = script.text("monitor", Some("4GiB"))?;
            ensure!(monitor.contains(" 3.0/  4.0 GB"), "{monitor}");
            let overview = script.text("", Some("4GiB"))?;
            ensure!(overview.contains(" 3072/4096 MB "), "{overview}");
        }
    }
    Ok(())
}

fn of_gpu(answer: &Value, gpu: usize) -> &Value {
    &answer.get("gpu_data").unwrap_or(answer)[gpu]
}

fn in_mib(value: &Value) -> Result<u64> {
    ensure!(value["unit"] == "MB", "not in MB: {value}");
    number(&value["value"])
}

/// As torch and others do it: by amdsmi's own Python module.
fn a_python_program_sees_the_same_in_every_function(version: &str) -> Result<()> {
    let (bench, mut shell) = busy(version, "mi210")?;
    if Script::amd_smi(&bench)?.is_none() {
        return Ok(());
    }
    shell.info()?;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("asks.py");
    std::fs::write(&program, ASKS)?;
    let script = Script::at(&bench, program)?;
    let native: Value = serde_json::from_str(last_line(&script.text("", None)?))?;
    let limited: Value = serde_json::from_str(last_line(&script.text("", Some("4GiB"))?))?;
    for gpu in 0..2 {
        let used = charged(&bench, gpu)?;
        let (native, limited) = (&native[gpu], &limited[gpu]);
        ensure!(number(&native["total"])? > 60 * GIB, "{native}");
        assert_eq!(number(&limited["total"])?, 4 * GIB, "{limited}");
        assert_eq!(number(&limited["used"])?, used, "{limited}");
        assert_eq!(number(&limited["size"])?, 4096, "{limited}");
        // The node cannot tell it to the one of 6.1.
        assert_eq!(native["usage"].is_null(), limited["usage"].is_null());
        if bench.runtime.generation() < 600 && native["usage"].is_null() {
            continue;
        }
        ensure!(
            number(&native["usage"]["vram_total"])? > 60 << 10,
            "{native}"
        );
        let usage = &limited["usage"];
        let shown = (number(&usage["vram_total"])?, number(&usage["vram_used"])?);
        assert_eq!(shown, (4096, used / MIB), "{limited}");
    }
    Ok(())
}

/// The libraries print warnings, too.
fn last_line(text: &str) -> &str {
    text.lines().next_back().unwrap_or_default()
}

const ASKS: &str = "
import json
from amdsmi import *
amdsmi_init()
gpus = []
for gpu in amdsmi_get_processor_handles():
    info = amdsmi_get_gpu_vram_info(gpu)
    try:
        usage = amdsmi_get_gpu_vram_usage(gpu)
    except AmdSmiException:
        usage = None
    gpus.append({
        'total': amdsmi_get_gpu_memory_total(gpu, AmdSmiMemoryType.VRAM),
        'used': amdsmi_get_gpu_memory_usage(gpu, AmdSmiMemoryType.VRAM),
        'size': info.get('vram_size', info.get('vram_size_mb')),
        'usage': usage,
    })
print(json.dumps(gpus))
";

/// By plain symbols, and by those of libamd_smi that have versions.
fn a_linked_program_sees_the_same(version: &str) -> Result<()> {
    let (bench, mut shell) = busy(version, "mi210")?;
    shell.info()?;
    let used = [charged(&bench, 0)?, charged(&bench, 1)?];
    // Older ones lie outside of the usual folder.
    let mut folders = bench.runtime.library_dirs.clone();
    folders.push(bench.runtime.root.join("usr/lib"));
    for (start, definitions) in [
        ("librocm_smi64.so.", &[][..]),
        ("libamd_smi.so.", &["-DAMDSMI"]),
    ] {
        let entries = folders.iter().flat_map(std::fs::read_dir).flatten();
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        // The name that programs ask for has one number.
        let library = paths.find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let rest = name.and_then(|name| name.strip_prefix(start));
            rest.is_some_and(|rest| !rest.contains('.'))
        });
        let Some(library) = library else {
            ensure!(bench.runtime.suite == "bookworm", "there is no {start}");
            continue;
        };
        let folder = tempfile::tempdir()?;
        let runtime = &bench.runtime;
        let program = build_with("smi", runtime, &library, definitions, folder.path())?;
        let native = gpus(foreign(&bench, program.clone())?)?;
        let mut command = foreign(&bench, program)?;
        limit_to(&mut command, "4GiB");
        let limited = gpus(command)?;
        assert_eq!(
            limited,
            [(0x300, 4 * GIB, used[0]), (0x2600, 4 * GIB, used[1])]
        );
        let is_board = |address, gpu: &(u64, u64, u64)| gpu.0 == address && gpu.1 > 60 * GIB;
        let [first, second] = &native[..] else {
            bail!("two GPUs: {native:?}");
        };
        ensure!(is_board(0x300, first) && is_board(0x2600, second));
    }
    Ok(())
}

/// Address, total and use of each GPU. The libraries print warnings, too.
fn gpus(command: Command) -> Result<Vec<(u64, u64, u64)>> {
    let text = String::from_utf8(output(command)?)?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("gpu "));
    let numbers = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let address = u64::from_str_radix(words[0], 16)?;
        Ok((address, words[1].parse()?, words[2].parse()?))
    });
    numbers.collect()
}
