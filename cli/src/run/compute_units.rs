//! The range of compute units: which text holds, whether it can be understood, and whether it fits this machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use hipflex_kfd::Root;
use hipflex_kfd::cu::{self, CuError, CuRange, MARKER, Machine, Own, Variables};

use crate::environment::{CU_RANGE, Environment};
use crate::failure::Failure;

/// A range that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// As it will be handed to the program in `FH_CU_RANGE`.
    pub(crate) text: OsString,
    /// Where it came from, for messages.
    origin: &'static str,
}

/// The range of the flag, else of the environment; `None`: compute units are not limited.
pub(crate) fn choose(
    flag: Option<&OsStr>,
    environment: &Environment,
) -> Result<Option<Wanted>, Failure> {
    let (text, origin) = match (flag, environment.get(CU_RANGE)) {
        (Some(text), _) => (text, "--cus"),
        (None, Some(text)) => (text, CU_RANGE),
        (None, None) => return Ok(None),
    };
    let wanted = Wanted {
        text: text.to_owned(),
        origin,
    };
    match CuRange::parse(text.as_bytes()) {
        Ok(_) => Ok(Some(wanted)),
        Err(error) => Err(wanted.refused(CuError::Range(error))),
    }
}

impl Wanted {
    /// Checks that each GPU that the runtime will show has something of the range, by the same rules by which the
    /// library will give it. (What is cut then is told by the library, at the program's first HIP call.)
    pub(crate) fn check(&self, root: &Root, environment: &Environment) -> Result<(), Failure> {
        let mut machine = Machine::empty();
        let read = machine.read_below(root);
        read.map_err(|error| self.refused(error))?;
        let variable = |name| environment.raw(name).map(OsStrExt::as_bytes);
        let variables = Variables {
            range: self.text.as_bytes(),
            visible: variable("ROCR_VISIBLE_DEVICES"),
            mask: Own::of(variable("HSA_CU_MASK"), variable(MARKER)).user,
        };
        cu::give(&variables, &machine, &mut |_, _, _| {}).map_err(|error| self.refused(error))
    }

    fn refused(&self, error: CuError) -> Failure {
        let why = error.explain(self.text.as_bytes());
        Failure::refused(format!("{}: {why}", self.origin), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::gpus::tests::machine;

    fn wanted(text: &str) -> Result<Option<Wanted>, Failure> {
        choose(Some(OsStr::new(text)), &Environment::default())
    }

    #[test]
    fn the_flag_comes_before_the_variable() {
        let set = Environment::from([(CU_RANGE, "0-3")]);
        let text = |chosen: Result<Option<Wanted>, Failure>| chosen.unwrap().unwrap().text;
        assert_eq!(text(choose(Some(OsStr::new("0-7")), &set)), "0-7");
        assert_eq!(text(choose(None, &set)), "0-3");
        assert_eq!(choose(None, &Environment::default()), Ok(None));
    }

    #[test]
    fn messages_name_the_origin_and_the_value() {
        for text in ["banana", "5-3", "0-37,", "03:00.0=0-3,banana", ""] {
            let message = wanted(text).unwrap_err().to_string();
            assert!(message.starts_with("--cus: "), "{message}");
            let set = Environment::from([(CU_RANGE, text)]);
            if let Err(error) = choose(None, &set) {
                assert!(error.to_string().starts_with("FH_CU_RANGE: "), "{error}");
            } else {
                assert_eq!(text, "", "set to nothing is not set");
            }
        }
    }

    #[test]
    fn it_must_fit_the_machine() {
        let machine = machine(2);
        let check = |range: &str, variables: &[(&str, &str)]| {
            let mut environment = Environment::default();
            for (name, value) in variables {
                environment.set(name, *value);
            }
            let wanted = wanted(range).unwrap().unwrap();
            let checked = wanted.check(&Root::at(machine.path()), &environment);
            checked.map_err(|failure| failure.to_string())
        };
        assert_eq!(check("0-37", &[]), Ok(()));
        assert_eq!(check("0-500", &[]), Ok(()), "the end is cut");
        let past = check("104-110", &[]).unwrap_err();
        assert!(
            past.contains("it has 104") && past.contains("0000:03:00.0"),
            "{past}"
        );
        let missing = check("09:00.0=0-3,*=0-1", &[]).unwrap_err();
        assert!(
            missing.contains("0000:09:00.0 is not on this machine"),
            "{missing}"
        );
        let unnamed = check("03:00.0=0-3", &[]).unwrap_err();
        assert!(unnamed.contains("0000:04:00.0=FIRST-LAST"), "{unnamed}");
        assert_eq!(
            check("03:00.0=0-3", &[("ROCR_VISIBLE_DEVICES", "0")]),
            Ok(())
        );
        let own = check("0-37", &[("HSA_CU_MASK", "1:40-50")]).unwrap_err();
        assert!(
            own.contains("0000:04:00.0") && own.contains("HSA_CU_MASK"),
            "{own}"
        );
        // A mask that hipflex itself has made is not the user's.
        let made = [("HSA_CU_MASK", "0:40-50"), (MARKER, "40-50||0:40-50|")];
        assert_eq!(check("0-37", &made), Ok(()));
    }
}
