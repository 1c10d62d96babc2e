//! Hooks and probes on the same functions: attached before, while and after they are hooked, and detached again,
//! while threads call. Nothing crashes, each call is seen exactly once by the program, the hook and the probe, and
//! a probe at the return sees what the program gets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::driver::{Driver, Outcome};
use hipflex_e2e::probe::{self, Probed, Seen};
use hipflex_e2e::{paths, runtime};
use tempfile::TempDir;

/// How many times probes come and go: `HIPFLEX_CYCLES`.
fn cycles() -> usize {
    let asked = std::env::var("HIPFLEX_CYCLES").ok();
    asked.map_or(50, |cycles| cycles.parse().expect("a number"))
}

macro_rules! on_each_library {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn prologues() -> anyhow::Result<()> { super::$name("prologues") }
            #[test]
            fn hip_5_2() -> anyhow::Result<()> { super::$name("5.2") }
            #[test]
            fn hip_5_7() -> anyhow::Result<()> { super::$name("5.7") }
        }
    )+ };
}

on_each_library!(
    probes_that_were_there_before,
    probes_that_come_while_it_is_hooked_and_called,
    probes_that_come_and_go,
);

/// A copy of a library, so that no other program is probed, and a program that calls its functions.
struct Scene {
    library: PathBuf,
    places: BTreeMap<String, u64>,
    driver: Driver,
    _folder: TempDir,
}

impl Scene {
    /// `None`: probes cannot be attached here.
    fn start(library: &str, functions: Option<&[&str]>) -> Result<Option<Scene>> {
        if probe::is_skipped(&format!("probes on hooked functions of {library}")) {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("library.so");
        let program = Path::new(env!("CARGO_BIN_EXE_hook-driver"));
        let mut driver = if library == "prologues" {
            let source = paths::workspace().join("hooking/tests/prologues.S");
            assemble(&source, &copy)?;
            let names = names(&fs::read_to_string(source)?);
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let path = format!("-{}", copy.display());
            Driver::start(program, &path, functions.unwrap_or(&names))?
        } else {
            let runtime = runtime::find(library)?;
            let dirs = runtime.library_dirs.iter();
            let mut candidates = dirs
                .map(|dir| dir.join(&runtime.library))
                .filter(|path| path.exists());
            let original = candidates.next().context("no library")?;
            fs::copy(&original, &copy)?;
            let all = hipflex_functions();
            Driver::start_on(program, &runtime, &copy, functions.unwrap_or(&all))?
        };
        Ok(Some(Scene {
            places: driver.places()?,
            library: copy,
            driver,
            _folder: folder,
        }))
    }

    fn attach(&self) -> Result<Probed> {
        Probed::attach(&self.library, &self.places)
    }

    /// Calls each function so many times, and compares what all say of it.
    fn compare(&mut self, probed: Option<&Probed>, hooked: bool) -> Result<()> {
        let before = self.driver.totals()?;
        let seen_before = probed.map(Probed::seen).transpose()?.unwrap_or_default();
        self.driver.call(CALLS)?;
        let totals = self.driver.totals()?;
        for (name, total) in &totals {
            ensure!(
                total.calls - before[name].calls == CALLS,
                "{name}: {total:?}"
            );
            ensure!(total.wrong == 0, "{name}: {total:?}");
            let seen = total.hooked - before[name].hooked;
            ensure!(
                seen == if hooked { CALLS } else { 0 },
                "{name}: the hook saw {seen}"
            );
        }
        let Some(probed) = probed else {
            return Ok(());
        };
        for (index, seen) in probed.seen()?.iter().enumerate() {
            let (name, offset) = &probed.places[index];
            let expected = Seen {
                calls: CALLS,
                returned: BTreeMap::from([(totals[name].result, CALLS)]),
            };
            let seen = seen.since(&seen_before[index]);
            ensure!(
                seen == expected,
                "{name} +{offset}: {seen:?}, not {expected:?}"
            );
        }
        Ok(())
    }
}

/// How often each function is called between two looks.
const CALLS: u64 = 100;

fn probes_that_were_there_before(library: &str) -> Result<()> {
    let Some(mut scene) = Scene::start(library, None)? else {
        return Ok(());
    };
    let begun = Instant::now();
    let probed = scene.attach()?;
    println!(
        "attached {} pairs in {:?}",
        probed.places.len(),
        begun.elapsed()
    );
    scene.compare(Some(&probed), false)?;
    let (outcomes, took) = scene.driver.hook()?;
    println!("{took}, with probes");
    ensure!(
        outcomes
            .values()
            .all(|o| matches!(o, Outcome::Hooked { .. }))
    );
    scene.compare(Some(&probed), true)?;
    // They are detached while threads call.
    let names: Vec<_> = scene.places.keys().map(String::as_str).collect();
    scene.driver.spin(&names)?;
    let begun = Instant::now();
    drop(probed);
    println!("detached them in {:?}", begun.elapsed());
    scene.driver.rest()?;
    scene.compare(None, true)
}

fn probes_that_come_while_it_is_hooked_and_called(library: &str) -> Result<()> {
    let Some(mut scene) = Scene::start(library, None)? else {
        return Ok(());
    };
    let names: Vec<_> = scene.places.keys().map(String::as_str).collect();
    scene.driver.spin(&names)?;
    // The driver hooks while its threads call and this process attaches.
    scene.driver.begin("hook")?;
    let probed = scene.attach()?;
    let (outcomes, _) = scene.driver.hooked()?;
    ensure!(
        outcomes
            .values()
            .all(|o| matches!(o, Outcome::Hooked { .. }))
    );
    scene.driver.rest()?;
    scene.compare(Some(&probed), true)
}

fn probes_that_come_and_go(library: &str) -> Result<()> {
    let two = match library {
        "prologues" => ["keep_push", "keep_endbr_push"],
        _ => ["hipMalloc", "hipFree"],
    };
    let Some(mut scene) = Scene::start(library, Some(&two))? else {
        return Ok(());
    };
    scene.driver.spin(&two)?;
    scene.driver.hook()?;
    let begun = Instant::now();
    for cycle in 0..cycles() {
        let probed = scene.attach().with_context(|| format!("cycle {cycle}"))?;
        scene.driver.rest()?;
        scene
            .compare(Some(&probed), true)
            .with_context(|| format!("cycle {cycle}"))?;
        scene.driver.spin(&two)?;
        drop(probed);
    }
    scene.driver.rest()?;
    for (name, total) in scene.driver.totals()? {
        println!("{name}: {total:?}");
        ensure!(total.wrong == 0, "{name}: {total:?}");
    }
    println!("{} cycles in {:?}", cycles(), begun.elapsed());
    Ok(())
}

/// The functions of `prologues.S` that can be hooked, but for those which call others of them, or themselves: they are
/// seen more often than they are called.
fn names(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.strip_prefix("FN "));
    names
        .filter_map(|name| name.split_whitespace().next())
        .filter(|name| name.starts_with("keep_"))
        .filter(|name| !["keep_alias", "keep_recursion"].contains(name))
        .map(str::to_string)
        .collect()
}

/// The functions that hipflex hooks: rows of its table begin with the name, indented.
fn hipflex_functions() -> Vec<&'static str> {
    let table = include_str!("../../../enforcer/src/hook_table.rs");
    let rows = table.lines().filter_map(|line| line.strip_prefix("    "));
    rows.filter(|row| row.starts_with("hip"))
        .filter_map(|row| row.split([' ', '(']).next())
        .collect()
}

fn assemble(source: &Path, library: &Path) -> Result<()> {
    let built = Command::new("cc")
        .args(["-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o"])
        .arg(library)
        .arg(source)
        .status()
        .context("cannot run cc")?;
    ensure!(built.success(), "{} does not assemble", source.display());
    Ok(())
}
