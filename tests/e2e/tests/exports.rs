//! The lists of what the real runtimes export, which the stand-ins are held to and the coverage is told by.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::exports::{self, Export};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::runtime;

on_each_runtime!(the_list_is_that_of_the_library,);

fn the_list_is_that_of_the_library(version: &str) -> Result<()> {
    let runtime = runtime::find(version)?;
    let library = runtime
        .file_of_library()
        .context("the runtime has no library")?;
    let real = exports::of_library(&library)?;
    let listed = exports::listed(&runtime.version)?;
    let lacks = |these: &[Export], those: &[Export]| {
        let missing = these.iter().filter(|one| !those.contains(one));
        missing.map(ToString::to_string).collect::<Vec<_>>()
    };
    let (new, gone) = (lacks(&real, &listed), lacks(&listed, &real));
    ensure!(
        new.is_empty() && gone.is_empty(),
        "only in the library: {new:?}; only in the list: {gone:?}: `cargo xtask coverage --exports` makes it anew"
    );
    // Most exports of the releases that have a table are stubs of it.
    let stubs = real.iter().filter(|export| export.slot.is_some()).count();
    ensure!((runtime.major() >= 6) == (stubs > 400), "{stubs} stubs");
    Ok(())
}
