//! AMD's own tools on the emulated node: what they show is what was allocated.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::tool::{foreign, output, python};
use serde_json::Value;

const GIB: u64 = 1 << 30;
const BOARD: u64 = (64 << 30) - (16 << 20);

on_each_runtime!(
    rocminfo_sees_the_card,
    rocm_smi_shows_memory,
    amd_smi_shows_memory
);

fn rocminfo_sees_the_card(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let Some(rocminfo) = bench.runtime.file("usr/bin/rocminfo") else {
        // Debian's experimental has the runtime alone.
        ensure!(
            bench.runtime.suite == "experimental",
            "the suite should have rocminfo"
        );
        return Ok(());
    };
    let text = String::from_utf8(output(foreign(&bench, rocminfo)?)?)?;
    for part in [
        "gfx90a",
        "AMD Instinct MI210",
        "Compute Unit:            104",
    ] {
        ensure!(text.contains(part), "{part:?} is not in {text}");
    }
    Ok(())
}

fn rocm_smi_shows_memory(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let Some(script) = bench.runtime.file("usr/libexec/rocm_smi/rocm_smi.py") else {
        ensure!(bench.runtime.suite != "sid", "sid should have rocm-smi");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let mut shell = bench.shell(Access::Linked)?;
    ensure!(shell.malloc("a", GIB)?);
    let mut command = python(&bench, &script, folder.path())?;
    command.args(["--showmeminfo", "vram", "--showpids", "--json"]);
    let shown: Value = serde_json::from_slice(&output(command)?)?;
    assert_eq!(shown["card0"]["VRAM Total Memory (B)"], BOARD.to_string());
    let used: u64 = text(&shown["card0"]["VRAM Total Used Memory (B)"])?.parse()?;
    ensure!((GIB..GIB + GIB / 8).contains(&used), "{used} bytes used");
    // Name, GPUs, VRAM, SDMA time, CU occupancy.
    let process = text(&shown["system"][format!("PID{}", shell.pid())])?;
    let held: u64 = process.split(", ").nth(2).context("no VRAM")?.parse()?;
    ensure!((GIB..GIB + GIB / 8).contains(&held), "{process}");
    Ok(())
}

fn amd_smi_shows_memory(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let script = bench.runtime.file("usr/libexec/amdsmi_cli/amdsmi_cli.py");
    ensure!(
        script.is_some() || bench.runtime.suite != "sid",
        "sid should have amd-smi"
    );
    // The one of ROCm 5.7 finds no PCI address on the node, which is made for those since 6.
    let Some(script) = script.filter(|_| bench.runtime.generation() >= 600) else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let mut shell = bench.shell(Access::Linked)?;
    ensure!(shell.malloc("a", GIB)?);
    let ask = |what: &str| -> Result<Value> {
        let mut command = python(&bench, &script, folder.path())?;
        command.args([what, "--json"]);
        serde_json::from_slice(&output(command)?).with_context(|| format!("amd-smi {what}"))
    };
    let list = ask("list")?;
    assert_eq!(list[0]["bdf"], "0000:03:00.0", "{list}");
    let fixed = &ask("static")?["gpu_data"][0]["asic"];
    assert_eq!(fixed["market_name"], "AMD Instinct MI210", "{fixed}");
    assert_eq!(fixed["num_compute_units"], 104, "{fixed}");
    let monitor = ask("monitor")?;
    assert_eq!(monitor[0]["vram_total"]["value"], 64.0, "{monitor}");
    assert_eq!(monitor[0]["vram_used"]["value"], 1.0, "{monitor}");
    // `vram_mem` comes from the fdinfo of DRM files, which the emulated node has not.
    let processes = ask("process")?;
    let process = &processes[0]["process_list"][0]["process_info"];
    assert_eq!(process["pid"], shell.pid(), "{processes}");
    assert_eq!(process["mem_usage"]["value"], GIB, "{processes}");
    Ok(())
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .with_context(|| format!("not a text: {value}"))
}
