//! Everything that is checked before anything is started, in the order of what a user typed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hipflex_kfd::Topology;
use hipflex_ledger::{Place, yes_or_no};

use crate::args::{FailMode, RunArgs};
use crate::environment::{BUDGET, ENABLE_HOOKS, Environment, FAIL_MODE, MEMORY_LIMIT};
use crate::failure::Failure;
use crate::run::{budget, command, gpus, library, limit, preload};

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
/// With `--fail-mode open`, what keeps a limit from being *enforced* (no GPU, no account) is a
/// warning. What was *asked* wrongly (a limit that is none, a library that is not there, a program
/// that does not exist) stops the run in either mode.
pub(crate) fn prepare(
    args: RunArgs,
    mut environment: Environment,
    program_directory: Option<&Path>,
) -> Result<Prepared, Failure> {
    let mut warnings = Vec::new();
    let wanted = limit::choose(args.memory.as_deref(), &environment)?;
    let named = args.budget.as_deref().map(budget::named).transpose()?;
    let mode = fail_mode(args.fail_mode, &environment)?;
    let library = library::find(args.lib.as_deref(), &environment, program_directory)?;
    let name = args.command.first().cloned().unwrap_or_default();
    let program = command::find(&name, &environment)?;

    let topology = tolerate(mode, gpus::check(&environment.root()), &mut warnings)?;
    let place = place()?;
    budget::remove_stale(&place);
    let budget = match named {
        Some(name) => name,
        None => budget::fresh(&program, &place)?,
    };
    if let Some(topology) = &topology {
        let specs = wanted.on(topology)?;
        warnings.extend(limit::above_the_board(&specs));
        warnings.extend(missing_render_nodes(topology));
        let joining = budget::try_joining(&place, &budget, &specs);
        let notices = tolerate(mode, joining, &mut warnings)?;
        warnings.extend(notices.unwrap_or_default());
    }
    warnings.extend(inherited(&args, &environment));
    if let Some(obstacle) = command::preload_obstacle(&program, &environment) {
        warnings.push(format!("{obstacle}, so it will not be limited"));
    }

    environment.set(MEMORY_LIMIT, wanted.text);
    environment.set(BUDGET, budget.as_str());
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

/// Where the ledgers lie.
fn place() -> Result<Place, Failure> {
    Place::from_env().map_err(|error| Failure::refused(error.to_string(), ""))
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

/// Settings of the environment that a run does not take, or that undo it.
fn inherited(args: &RunArgs, environment: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (None, Some(name)) = (&args.budget, environment.get(BUDGET)) {
        let name = name.display();
        warnings.push(format!(
            "{BUDGET}={name} is set but not used: each run gets a budget of its own; to join it, use --budget {name}"
        ));
    }
    if environment.get(ENABLE_HOOKS).and_then(yes_or_no) == Some(false) {
        warnings.push(format!(
            "{ENABLE_HOOKS} turns the limit off; unset it to have the program limited"
        ));
    }
    warnings
}

fn missing_render_nodes(topology: &Topology) -> Option<String> {
    let missing: Vec<String> = topology
        .gpus
        .iter()
        .filter(|gpu| !gpu.render_node_present)
        .map(|gpu| gpu.bdf.to_string())
        .collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "HIP will not see {}: no render node in /dev/dri",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

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
    fn settings_that_work_against_the_run_are_told() {
        let args = |budget: Option<&str>| RunArgs {
            memory: None,
            budget: budget.map(OsString::from),
            fail_mode: None,
            lib: None,
            command: Vec::new(),
        };
        let set = Environment::from([(BUDGET, "team"), (ENABLE_HOOKS, "OFF")]);
        let told = inherited(&args(None), &set);
        assert!(
            told[0].contains("--budget team") && told[1].contains(ENABLE_HOOKS),
            "{told:?}"
        );
        assert_eq!(inherited(&args(Some("other")), &set).len(), 1);
        let harmless = Environment::from([(ENABLE_HOOKS, "true")]);
        assert_eq!(inherited(&args(None), &harmless), Vec::<String>::new());
    }
}
