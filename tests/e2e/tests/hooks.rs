//! Hooks in AMD's own runtimes: what is hooked, what is refused, and that nothing in the whole library leads into
//! what a hook overwrites.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::driver::{Driver, Outcome};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::runtime::{self, Runtime};
use iced_x86::{Decoder, DecoderOptions, OpKind};

on_each_runtime!(
    every_function_is_hooked,
    nothing_in_the_library_leads_into_a_hook,
);

/// The functions that hipflex hooks: rows of its table begin with the name, indented.
fn functions() -> Vec<&'static str> {
    let table = include_str!("../../../enforcer/src/hook_table.rs");
    let rows = table.lines().filter_map(|line| line.strip_prefix("    "));
    rows.filter(|row| row.starts_with("hip"))
        .filter_map(|row| row.split([' ', '(']).next())
        .collect()
}

fn driver() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_hook-driver"))
}

/// The HIP library of a runtime.
fn library(runtime: &Runtime) -> Result<PathBuf> {
    let mut dirs = runtime.library_dirs.iter();
    dirs.find_map(|dir| fs::canonicalize(dir.join(&runtime.library)).ok())
        .with_context(|| format!("no {} in {}", runtime.library, runtime.root.display()))
}

fn every_function_is_hooked(version: &str) -> Result<()> {
    let runtime = runtime::find(version)?;
    let mut driver = Driver::start_on(driver(), &runtime, &library(&runtime)?, &functions())?;
    driver.call(10)?;
    let (outcomes, took) = driver.hook()?;
    println!("{} functions: {took}", outcomes.len());
    driver.call(10)?;
    let totals = driver.totals()?;
    for (name, outcome) in &outcomes {
        let total = totals[name];
        println!("{name}: {outcome:?}, {total:?}");
        ensure!(
            matches!(outcome, Outcome::Hooked { .. }),
            "{name}: {outcome:?}"
        );
        ensure!(total.calls == 20 && total.wrong == 0, "{name}: {total:?}");
        // From 6.x on hipGetDeviceProperties is a jump to what hipGetDevicePropertiesR0000 calls: seen for both.
        let both = name == "hipGetDeviceProperties" && runtime.major() >= 6;
        let expected = if both { 20 } else { 10 };
        ensure!(total.hooked == expected, "{name}: {total:?}");
    }
    // Some are newer than the oldest runtime.
    ensure!(outcomes.len() >= 25, "{outcomes:?}");
    Ok(())
}

/// A plan looks at its own function alone. What other code of the library does is looked at here.
fn nothing_in_the_library_leads_into_a_hook(version: &str) -> Result<()> {
    let runtime = runtime::find(version)?;
    let library = library(&runtime)?;
    let mut driver = Driver::start_on(driver(), &runtime, &library, &functions())?;
    let places = driver.places()?;
    let (outcomes, _) = driver.hook()?;
    // By offsets in the file: from behind the entry to the end of the jump.
    let needed: Vec<_> = outcomes
        .iter()
        .filter_map(|(name, outcome)| match outcome {
            Outcome::Hooked { entry, jump } => {
                let entry = places[name].wrapping_add_signed(*entry as i64);
                Some((name, entry + 1..entry + *jump as u64 + 5))
            }
            Outcome::Refused(_) => None,
        })
        .collect();
    let file = fs::read(&library)?;
    let mut branches = 0_u64;
    for (start, code) in executable_parts(&file)? {
        for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
            if instruction.op0_kind() != OpKind::NearBranch64 {
                continue;
            }
            branches += 1;
            let target = instruction.near_branch_target();
            for (name, needed) in &needed {
                ensure!(
                    !needed.contains(&target),
                    "{name}: from {:#x} to {target:#x}",
                    instruction.ip()
                );
            }
        }
    }
    println!("{branches} branches, {} hooks", needed.len());
    ensure!(branches > 10_000, "{branches} branches");
    Ok(())
}

/// The parts of a file that are loaded to be executed, with their offsets: `Elf64_Ehdr` and `Elf64_Phdr` of `elf.h`.
fn executable_parts(file: &[u8]) -> Result<Vec<(u64, &[u8])>> {
    const PT_LOAD: u32 = 1;
    const PF_X: u32 = 1;
    let number = |at: usize, length: usize| -> Result<u64> {
        let bytes = file.get(at..at + length).context("the file is too short")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | u64::from(*byte)))
    };
    let (headers, count) = (number(32, 8)? as usize, number(56, 2)? as usize);
    let mut parts = Vec::new();
    for header in (0..count).map(|index| headers + index * 56) {
        let (kind, flags) = (number(header, 4)? as u32, number(header + 4, 4)? as u32);
        if kind == PT_LOAD && flags & PF_X != 0 {
            let (offset, length) = (number(header + 8, 8)?, number(header + 32, 8)?);
            let part = file.get(offset as usize..(offset + length) as usize);
            parts.push((offset, part.context("the file is too short")?));
        }
    }
    Ok(parts)
}
