//! Settings of the library that the program will inherit, and that a user may have got wrong.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::args::RunArgs;
use hipflex_ledger::EngineChoice;

use crate::environment::{
    BUDGET, ENABLE_HOOKS, ENABLE_LOG, Environment, HIP_LIB_PATH, HOOK_ENGINE, LOG_PATH,
};
use crate::failure::Failure;

/// Whether the HIP runtime that was named is there. A name without a slash is looked up by the dynamic
/// linker, in places that only it knows.
pub(crate) fn check_runtime(environment: &Environment) -> Result<(), Failure> {
    let named = environment.get(HIP_LIB_PATH);
    let Some(path) = named.filter(|path| path.as_bytes().contains(&b'/')) else {
        return Ok(());
    };
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => String::from("is not a file"),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => String::from("does not exist"),
            _ => format!("cannot be read: {error}"),
        },
    };
    Err(Failure::refused(
        format!("{HIP_LIB_PATH}={} {problem}", path.display()),
        "name the libamdhip64.so to use, or unset it to have the one that the program loads",
    ))
}

/// Whether the engine that was named is one.
pub(crate) fn check_engine(environment: &Environment) -> Result<(), Failure> {
    let named = environment.get(HOOK_ENGINE).unwrap_or_default();
    EngineChoice::parse(named)
        .map(|_| ())
        .map_err(|problem| Failure::refused(problem, "or unset it, which is \"auto\""))
}

/// That the library is told to do nothing.
pub(crate) fn hooks_off(environment: &Environment) -> Option<String> {
    let value = environment.get(ENABLE_HOOKS)?;
    environment
        .says_no(ENABLE_HOOKS)
        .then(|| format!("{ENABLE_HOOKS}={} turns hipflex off", value.display()))
}

/// Settings that a run does not take, or that will not work.
pub(crate) fn warnings(args: &RunArgs, environment: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (None, Some(name)) = (&args.budget, environment.get(BUDGET)) {
        let name = name.display();
        warnings.push(format!(
            "{BUDGET}={name} is set but not used: each run gets a budget of its own; to join it, use --budget {name}"
        ));
    }
    warnings.extend(missing_log_directory(environment));
    warnings
}

/// That the library has nowhere to log to. It makes the log file, and the directory of one if the
/// path says that it is a directory, and no more.
fn missing_log_directory(environment: &Environment) -> Option<String> {
    let text = environment.get(LOG_PATH)?;
    if text == "stderr" || environment.says_no(ENABLE_LOG) {
        return None;
    }
    // Neither a file nor a directory (also of the form `logs/`) is made in one that is missing.
    let parent = match Path::new(text).parent()? {
        here if here.as_os_str().is_empty() => return None,
        parent => parent,
    };
    (!parent.is_dir()).then(|| {
        format!(
            "{LOG_PATH}={} cannot be logged to: there is no directory {}",
            text.display(),
            parent.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn a_runtime_that_was_named_must_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("libamdhip64.so");
        fs::write(&file, "").unwrap();
        let check = |path: &Path| {
            let set = Environment::from([(HIP_LIB_PATH, path.to_str().unwrap())]);
            check_runtime(&set).map_err(|failure| failure.problem)
        };
        assert_eq!(check(&file), Ok(()));
        assert_eq!(check(Path::new("")), Ok(()), "not set");
        assert_eq!(
            check(Path::new("libamdhip64.so.6")),
            Ok(()),
            "for the dynamic linker to find"
        );
        let told =
            |path: &Path, problem| Err(format!("FH_HIP_LIB_PATH={} {problem}", path.display()));
        assert_eq!(
            check(directory.path()),
            told(directory.path(), "is not a file")
        );
        for missing in [directory.path().join("gone.so"), file.join("below")] {
            assert_eq!(check(&missing), told(&missing, "does not exist"));
        }
    }

    #[test]
    fn an_engine_that_was_named_must_be_one() {
        let check = |value: &str| check_engine(&Environment::from([(HOOK_ENGINE, value)]));
        for good in ["", "auto", "table", "detour", "gum", "none"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let failure = check("banana").unwrap_err();
        assert!(
            failure
                .problem
                .starts_with("FH_HOOK_ENGINE=\"banana\" is none of"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_log_needs_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let told = |path: &str, enable: &str| {
            let set = Environment::from([(LOG_PATH, path), (ENABLE_LOG, enable)]);
            missing_log_directory(&set)
        };
        let below = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        for good in [
            "",
            "stderr",
            "log",
            "/",
            &below(""),
            &below("log"),
            &below("logs/"),
        ] {
            assert_eq!(told(good, ""), None, "{good}");
        }
        for bad in [below("no/log"), below("no/logs/")] {
            let message = told(&bad, "").unwrap();
            let no = below("no");
            assert!(
                message.starts_with(&format!("FH_LOG_PATH={bad} ")) && message.ends_with(&no),
                "{message}"
            );
            assert_eq!(told(&bad, "off"), None, "there is no log at all");
        }
    }

    #[test]
    fn settings_that_work_against_the_run_are_told() {
        let args = |budget: Option<&str>| RunArgs {
            memory: None,
            cus: None,
            budget: budget.map(OsString::from),
            shared: false,
            fail_mode: None,
            lib: None,
            command: Vec::new(),
        };
        let set = Environment::from([(BUDGET, "team"), (ENABLE_HOOKS, "OFF")]);
        let told = warnings(&args(None), &set);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("--budget team"), "{told:?}");
        assert_eq!(warnings(&args(Some("other")), &set), Vec::<String>::new());
        assert_eq!(
            hooks_off(&set).unwrap(),
            "FH_ENABLE_HOOKS=OFF turns hipflex off"
        );
        for harmless in ["true", ""] {
            let set = Environment::from([(ENABLE_HOOKS, harmless)]);
            assert_eq!(hooks_off(&set), None);
        }
    }
}
