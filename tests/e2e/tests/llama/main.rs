//! llama.cpp with its HIP backend, as Debian has it, under a limit. Its kernels compute nothing on the emulated GPU, but
//! its allocations are real, and so is what it does when one is refused.
//!
//! A tier of its own: `cargo xtask test --llama`. What is not said by hipflex is said by llama.cpp, and its words may change with a
//! new version in Debian.

mod client;
mod gguf;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::limit_to;
use hipflex_e2e::status;

use client::{ALL_ON_GPU, Llama, buffers};

const MIB: u64 = 1 << 20;

/// What may be booked beside the buffers that it tells of: it rounds those, and has a pool for what it needs for a moment.
const BESIDE: u64 = 48 * MIB;

#[test]
fn a_limit_that_fits_changes_nothing_but_what_it_sees() -> Result<()> {
    let llama = Llama::start()?;
    let bare = llama.complete(None, &ALL_ON_GPU)?;
    let limited = llama.complete(Some("1GiB"), &ALL_ON_GPU)?;
    let text = bare.text()?;
    ensure!(
        text == limited.text()?,
        "{:?} without hipflex, {:?} with it",
        String::from_utf8_lossy(text),
        String::from_utf8_lossy(limited.text()?)
    );
    for said in [&bare, &limited] {
        ensure!(
            said.log.contains("offloaded 9/9 layers to GPU"),
            "{}",
            said.log
        );
        ensure!(!said.log.contains("hipflex:"), "{}", said.log);
    }
    let seen = |log: &str| -> Result<String> {
        let line = log.lines().find(|line| line.contains("using device ROCm0"));
        let line = line.with_context(|| format!("no device: {log}"))?;
        Ok(line.rsplit(" - ").next().unwrap_or_default().to_string())
    };
    assert_eq!(seen(&bare.log)?, "65520 MiB free");
    assert_eq!(seen(&limited.log)?, "1024 MiB free");
    Ok(())
}

#[test]
fn the_list_of_devices_shows_the_limit() -> Result<()> {
    let llama = Llama::start()?;
    let mut command = llama.program("llama-bench")?;
    limit_to(&mut command, "3GiB");
    let output = command.arg("--list-devices").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    ensure!(said.contains("(3072 MiB, 3072 MiB free)"), "{said}");
    ensure!(said.contains("Total VRAM: 3072 MiB"), "{said}");
    // Debian builds it without; where this fails, the pool of virtual memory wants a test of its own, and
    // GGML_CUDA_NO_VMM one without.
    ensure!(said.contains("VMM: no"), "{said}");
    Ok(())
}

#[test]
fn what_it_has_is_booked_while_it_runs() -> Result<()> {
    let llama = Llama::start()?;
    let waiting = llama.waiting("1GiB", &ALL_ON_GPU)?;
    let told = buffers(&waiting.log, 0)?;
    let budget = status::of(&llama.bench)?.budget("default")?;
    let process = budget.process(waiting.pid())?;
    ensure!(
        (told - MIB..told + BESIDE).contains(&process.booked),
        "booked {}, it says {told}",
        process.booked
    );
    ensure!(process.booked == budget.booked && process.refusals == 0);
    assert_eq!((budget.pending, budget.anomalies), (0, 0));
    waiting.end()?;
    let left = status::of(&llama.bench)?.budgets;
    ensure!(left.iter().all(|budget| budget.booked == 0));
    Ok(())
}

/// It does not fit: llama.cpp says so in its own words, and ends by itself.
fn is_refused(llama: &Llama, limit: &str, options: &[&str], asked: &str) -> Result<()> {
    let said = llama.complete(Some(limit), &[&ALL_ON_GPU, options].concat())?;
    ensure!(
        said.output.status.code() == Some(1),
        "{}: {}",
        said.output.status,
        said.log
    );
    for words in [
        asked,
        "out of memory",
        "llama_completion: error: unable to",
        "hipflex: hipMalloc on GPU 0000:03:00.0, budget 'default'",
    ] {
        ensure!(said.log.contains(words), "no {words:?} in: {}", said.log);
    }
    let left = status::of(&llama.bench)?.budgets;
    ensure!(left.iter().all(|budget| budget.booked == 0));
    Ok(())
}

#[test]
fn a_limit_that_its_model_does_not_fit_is_out_of_memory() -> Result<()> {
    let llama = Llama::start()?;
    is_refused(&llama, "64MiB", &[], "allocating 80.54 MiB on device 0")
}

#[test]
fn a_limit_that_its_context_does_not_fit_is_out_of_memory() -> Result<()> {
    let llama = Llama::start()?;
    let context = ["--ctx-size", "32768"];
    is_refused(
        &llama,
        "400MiB",
        &context,
        "allocating 512.00 MiB on device 0",
    )
}

#[test]
fn managed_memory_is_limited_too() -> Result<()> {
    let llama = Llama::start()?;
    let complete = |limit| -> Result<_> {
        let mut command = llama.completion(Some(limit), &ALL_ON_GPU)?;
        Ok(command
            .env("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "1")
            .output()?)
    };
    let fits = complete("1GiB")?;
    let log = String::from_utf8_lossy(&fits.stderr);
    ensure!(fits.status.success(), "{}: {log}", fits.status);
    let refused = complete("64MiB")?;
    let log = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        refused.status.code() == Some(1),
        "{}: {log}",
        refused.status
    );
    ensure!(log.contains("hipflex: hipMallocManaged on GPU"), "{log}");
    Ok(())
}

#[test]
fn every_engine_counts_it_once() -> Result<()> {
    let llama = Llama::start()?;
    let bare = llama.complete(None, &ALL_ON_GPU)?;
    for engine in ["none", "table", "detour"] {
        let run = |limit| -> Result<_> {
            let mut command = llama.completion(Some(limit), &ALL_ON_GPU)?;
            Ok(command.env("FH_HOOK_ENGINE", engine).output()?)
        };
        // The weights fit only if they are booked once; less than that does not hold them.
        let fits = run("300MiB")?;
        let log = String::from_utf8_lossy(&fits.stderr);
        ensure!(fits.status.success(), "{engine}: {}: {log}", fits.status);
        ensure!(fits.stdout == bare.text()?, "{engine}: another text");
        let refused = run("64MiB")?;
        let log = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            refused.status.code() == Some(1) && log.contains("out of memory"),
            "{engine}: {}: {log}",
            refused.status
        );
    }
    Ok(())
}

#[test]
fn a_second_one_gets_what_the_first_leaves() -> Result<()> {
    let llama = Llama::start()?;
    // One and its overhead fit, two do not.
    let limit = "360MiB";
    let first = llama.waiting(limit, &ALL_ON_GPU)?;
    is_refused_beside(&llama, limit)?;
    first.end()?;
    llama.complete(Some(limit), &ALL_ON_GPU)?.text()?;
    Ok(())
}

/// Another holds most of the budget, and the message says so.
fn is_refused_beside(llama: &Llama, limit: &str) -> Result<()> {
    let said = llama.complete(Some(limit), &ALL_ON_GPU)?;
    ensure!(
        said.output.status.code() == Some(1),
        "{}: {}",
        said.output.status,
        said.log
    );
    let line = said.log.lines().find(|line| line.contains("hipflex:"));
    let line = line.with_context(|| said.log.clone())?;
    ensure!(!line.contains("by others 0 B"), "{line}");
    Ok(())
}

#[test]
fn it_fits_itself_to_the_limit() -> Result<()> {
    let llama = Llama::start()?;
    // It leaves that much free, and puts what does not fit into main memory.
    let fit = ["--fit", "on", "--fit-target", "150"];
    let layers = |limit| -> Result<String> {
        let said = llama.complete(limit, &fit)?;
        said.text()?;
        let line = said.log.lines().rfind(|line| line.contains("offloaded "));
        Ok(line.with_context(|| said.log.clone())?.to_string())
    };
    ensure!(layers(None)?.contains("offloaded 9/9 layers"));
    let fewer = layers(Some("200MiB"))?;
    ensure!(!fewer.contains("9/9"), "{fewer}");
    Ok(())
}

#[test]
fn each_of_two_gpus_is_booked_its_own_layers() -> Result<()> {
    let llama = Llama::with(|node| node.gpus(2))?;
    let bare = llama.complete(None, &ALL_ON_GPU)?;
    let limited = llama.complete(Some("1GiB"), &ALL_ON_GPU)?;
    assert_eq!(bare.text()?, limited.text()?);
    let waiting = llama.waiting("1GiB", &ALL_ON_GPU)?;
    let booked = status::of(&llama.bench)?.budget("default")?.booked();
    assert_eq!(booked.len(), 2);
    for (gpu, booked) in booked.into_iter().enumerate() {
        let told = buffers(&waiting.log, gpu)?;
        ensure!(
            (told - MIB..told + BESIDE).contains(&booked),
            "GPU {gpu}: booked {booked}, it says {told}"
        );
    }
    waiting.end()
}
