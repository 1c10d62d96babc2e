//! Everything that is checked before anything is started, in the order of what a user typed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hipflex_ledger::{GpuSpec, Limit, Place, size};

use crate::args::{FailMode, RunArgs};
use crate::environment::{BUDGET, CU_RANGE, Environment, FAIL_MODE, MEMORY_LIMIT, SHM_SHARED};
use crate::failure::Failure;
use crate::place;
use crate::run::{budget, command, compute_units, gpus, library, limit, preload, settings};

/// A run that passed all checks.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The file to execute.
    pub(crate) program: PathBuf,
    /// Its arguments; the first is its name as it was typed.
    pub(crate) command: Vec<OsString>,
    /// Its environment.
    pub(crate) environment: Environment,
    /// What the user should know, and what is no reason to stop.
    pub(crate) warnings: Vec<String>,
}

/// Checks everything.
///
/// With `--fail-mode open`, what keeps a limit from being *enforced* (no GPU, no account, a program
/// into which nothing can be preloaded) is a warning. What was *asked* wrongly (a limit that is none, a library that is not there, a program
/// that does not exist) stops the run in either mode.
pub(crate) fn prepare(
    args: RunArgs,
    mut environment: Environment,
    program_directory: Option<&Path>,
) -> Result<Prepared, Failure> {
    let mut warnings = Vec::new();
    let wanted = limit::choose(args.memory.as_deref(), &environment)?;
    let cus = compute_units::choose(args.cus.as_deref(), &environment)?;
    if wanted.is_none() && cus.is_none() {
        return Err(limit::none());
    }
    if wanted.is_none() && args.budget.is_some() {
        return Err(Failure::refused(
            "--budget is for a limit on memory, and none was given",
            "use --memory SIZE, or --memory unlimited, with it",
        ));
    }
    let named = args.budget.as_deref().map(place::budget).transpose()?;
    let mode = fail_mode(args.fail_mode, &environment)?;
    settings::check_runtime(&environment)?;
    settings::check_engine(&environment)?;
    let library = library::find(args.lib.as_deref(), &environment, program_directory)?;
    let name = args.command.first().cloned().unwrap_or_default();
    let program = command::find(&name, &environment)?;
    tolerate_no_limit(
        mode,
        command::preload_obstacle(&program, &environment),
        "limit the program that uses the GPU, if this one only starts it",
        &mut warnings,
    )?;
    tolerate_no_limit(
        mode,
        settings::hooks_off(&environment),
        "unset it",
        &mut warnings,
    )?;

    let root = environment.root();
    let topology = tolerate(mode, gpus::check(&root), &mut warnings)?;
    if let (Some(cus), Some(_)) = (&cus, &topology) {
        cus.check(&root, &environment)?;
    }
    let mut limited = None;
    if let Some(wanted) = wanted {
        let mut place = place::from_environment()?;
        if args.shared {
            place = Place::new(place.root(), true);
            environment.set(SHM_SHARED, "1");
        }
        budget::remove_stale(&place);
        let budget = match named {
            Some(name) => name,
            None => budget::fresh(&program, &place)?,
        };
        if let Some(topology) = &topology {
            let specs = wanted.on(topology)?;
            warnings.extend(limit::above_the_board(&specs));
            warnings.extend(tiny(&wanted.text, &specs));
            let joining = budget::try_joining(&place, &budget, &specs);
            let notices = tolerate(mode, joining, &mut warnings)?;
            warnings.extend(notices.unwrap_or_default());
        }
        warnings.extend(budget::namesakes(&place, &budget));
        limited = Some((wanted.text, budget));
    }
    if let Some(topology) = &topology {
        warnings.extend(gpus::unusable(&root, topology));
    }
    warnings.extend(settings::warnings(&args, &environment));

    if let Some((limit, budget)) = limited {
        environment.set(MEMORY_LIMIT, limit);
        environment.set(BUDGET, budget.as_str());
    }
    if let Some(cus) = cus {
        environment.set(CU_RANGE, cus.text);
    }
    environment.set(FAIL_MODE, mode.name());
    preload::set(&library, &mut environment);
    preload::try_loading(&library, &environment)?;
    Ok(Prepared {
        program,
        command: args.command,
        environment,
        warnings,
    })
}

fn fail_mode(flag: Option<FailMode>, environment: &Environment) -> Result<FailMode, Failure> {
    let Some(text) = environment.get(FAIL_MODE).filter(|_| flag.is_none()) else {
        return Ok(flag.unwrap_or(FailMode::Closed));
    };
    let known = [FailMode::Closed, FailMode::Open];
    known
        .into_iter()
        .find(|mode| text == mode.name())
        .ok_or_else(|| {
            Failure::refused(
                format!("{FAIL_MODE}={} is not a fail mode", text.display()),
                "set it to closed (refuse) or open (run unlimited)",
            )
        })
}

/// The result, or with the open fail mode a warning in place of the failure.
fn tolerate<T>(
    mode: FailMode,
    result: Result<T, Failure>,
    warnings: &mut Vec<String>,
) -> Result<Option<T>, Failure> {
    match (result, mode) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(failure), FailMode::Closed) => Err(failure),
        (Err(failure), FailMode::Open) => {
            warnings.push(format!(
                "{failure}; starting anyway, without a limit (fail mode open)"
            ));
            Ok(None)
        }
    }
}

/// A limit that is too small for any program: most likely its unit was forgotten.
fn tiny(text: &str, specs: &[GpuSpec]) -> Option<String> {
    const SMALLEST: u64 = 1 << 20;
    let bytes = specs.iter().find_map(|spec| match spec.limit {
        Limit::Bytes(bytes) if bytes < SMALLEST => Some(bytes),
        _ => None,
    })?;
    let meant = match text.trim().parse::<u64>() {
        Ok(number) if number < 1024 => format!("for gibibytes write {number}GiB"),
        Ok(number) => format!("for mebibytes write {number}MiB"),
        Err(_) => String::from("write gibibytes as 4GiB, for example"),
    };
    Some(format!("the limit is {}; {meant}", size::Display(bytes)))
}

/// What makes the library idle or keeps it out of the program: the program would run without its
/// limit, and nobody would know.
fn tolerate_no_limit(
    mode: FailMode,
    problem: Option<String>,
    remedy: &str,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
    match (problem, mode) {
        (None, _) => Ok(()),
        (Some(problem), FailMode::Closed) => Err(Failure::refused(
            format!("{problem}, so that no limit would hold"),
            format!("{remedy}, or add --fail-mode open to start it all the same"),
        )),
        (Some(problem), FailMode::Open) => {
            warnings.push(format!(
                "{problem}, so that no limit holds (fail mode open)"
            ));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use hipflex_ledger::GpuKey;

    #[test]
    fn the_flag_comes_before_the_variable() {
        let set = Environment::from([(FAIL_MODE, "open")]);
        assert_eq!(fail_mode(None, &set), Ok(FailMode::Open));
        assert_eq!(
            fail_mode(Some(FailMode::Closed), &set),
            Ok(FailMode::Closed)
        );
        assert_eq!(
            fail_mode(None, &Environment::default()),
            Ok(FailMode::Closed)
        );
        let wrong = Environment::from([(FAIL_MODE, "ajar")]);
        assert!(
            fail_mode(None, &wrong)
                .unwrap_err()
                .to_string()
                .contains("FH_FAIL_MODE=ajar")
        );
        assert_eq!(fail_mode(Some(FailMode::Open), &wrong), Ok(FailMode::Open));
    }

    #[test]
    fn only_the_open_mode_tolerates() {
        let failure = Failure {
            exit: Exit::Refused,
            problem: "p".into(),
            remedy: "r".into(),
        };
        let mut warnings = Vec::new();
        let closed = tolerate::<()>(FailMode::Closed, Err(failure.clone()), &mut warnings);
        assert_eq!((closed, warnings.len()), (Err(failure.clone()), 0));
        assert_eq!(
            tolerate::<()>(FailMode::Open, Err(failure), &mut warnings),
            Ok(None)
        );
        assert_eq!(
            warnings,
            ["p; r; starting anyway, without a limit (fail mode open)"]
        );
        assert_eq!(
            tolerate(FailMode::Closed, Ok(1), &mut warnings),
            Ok(Some(1))
        );
    }

    #[test]
    fn a_tiny_limit_is_told_with_what_may_be_meant() {
        let told = |text: &str, bytes| {
            let limit = Limit::Bytes(bytes);
            let spec = |limit| GpuSpec {
                key: GpuKey(0x300),
                limit,
                board_bytes: 0,
            };
            tiny(text, &[spec(Limit::Unlimited), spec(limit)])
        };
        assert_eq!(
            told("4", 4).unwrap(),
            "the limit is 4 B; for gibibytes write 4GiB"
        );
        assert_eq!(
            told(" 8192 ", 8192).unwrap(),
            "the limit is 8.0 KiB; for mebibytes write 8192MiB"
        );
        assert_eq!(
            told("0000:03:00.0=512K,*=unlimited", 512_000).unwrap(),
            "the limit is 500.0 KiB; write gibibytes as 4GiB, for example"
        );
        assert_eq!(told("1MiB", 1 << 20), None);
    }

    #[test]
    fn without_a_limit_nothing_starts_in_the_closed_mode() {
        let problem = || Some(String::from("it is static"));
        let mut warnings = Vec::new();
        let mut judge = |mode, problem| tolerate_no_limit(mode, problem, "do not", &mut warnings);
        assert_eq!(judge(FailMode::Closed, None), Ok(()));
        let refused = judge(FailMode::Closed, problem()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it is static, so that no limit would hold; do not, or add --fail-mode open to start it \
             all the same"
        );
        assert_eq!(judge(FailMode::Open, problem()), Ok(()));
        assert_eq!(
            warnings,
            ["it is static, so that no limit holds (fail mode open)"]
        );
    }
}
