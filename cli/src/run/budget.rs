//! The budget: its name, and whether its ledger can really be used.

use std::ffi::OsStr;
use std::path::Path;
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use hipflex_ledger::{
    Alive, BudgetName, ChangeError, GpuSpec, Identity, JoinError, Ledger, Listed, Member, Notice,
    Place,
};
use nix::unistd::{Uid, User, geteuid};

use crate::failure::Failure;

/// How much of the program's name goes into the name of a fresh budget.
const LONGEST_PREFIX: usize = 24;

/// A budget of its own for one run, named after the program so that `status` is easy to read.
pub(crate) fn fresh(program: &Path, place: &Place) -> Result<BudgetName, Failure> {
    let prefix = prefix(program.file_name().unwrap_or_default());
    let pid = process::id();
    // A PID alone comes again, and in another PID namespace it is in use at the same time.
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut salt = time.as_nanos() as u32;
    loop {
        let name = BudgetName::new(&format!("{prefix}-{pid}-{salt:08x}"))
            .map_err(|error| Failure::refused(error.to_string(), "name a budget with --budget"))?;
        if !place.ledger_path(&name).exists() {
            return Ok(name);
        }
        salt = salt.wrapping_add(1);
    }
}

/// The program's name in the letters that a budget's name may have.
fn prefix(program: &OsStr) -> String {
    let name = program.to_string_lossy();
    let letters = name.chars().map(|c| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        }
    });
    let prefix: String = letters.take(LONGEST_PREFIX).collect();
    match prefix.trim_matches('-') {
        "" => String::from("run"),
        prefix => prefix.to_owned(),
    }
}

/// Removes what earlier runs of this user left behind: ledgers that no process uses. Returns nothing,
/// because one that cannot be removed is not this run's concern; `status` tells of it.
pub(crate) fn remove_stale(place: &Place) {
    let own = geteuid().as_raw();
    for listed in Ledger::list(place).unwrap_or_default() {
        let (Ok(ledger), None | Some(true)) = (listed.ledger, listed.uid.map(|uid| uid == own))
        else {
            continue;
        };
        // A ledger that is in use is left alone: removing takes the lock that joining needs.
        let unused = ledger.reap().is_ok() && ledger.snapshot().members.is_empty();
        if unused && matches!(ledger.remove_if_empty(), Err(ChangeError::Lock(_))) {
            // Whoever holds the lock is not waited for once more.
            break;
        }
    }
}

/// Joins the budget as the program will, and leaves it again.
///
/// Nothing less tells whether it will work: the directory, the ledger's version, room and free
/// slots, the locks of the file system. What the joining brings up is returned as notices, but for a
/// limit that is not the budget's: of that the library tells each process at its first HIP call, and
/// hearing it twice makes two problems of one.
pub(crate) fn try_joining(
    place: &Place,
    budget: &BudgetName,
    gpus: &[GpuSpec],
) -> Result<Vec<String>, Failure> {
    let identity = Identity {
        comm: b"hipflex run".to_vec(),
        library_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let joined =
        Member::join(place, budget, gpus, &identity).map_err(|error| failed(budget, &error))?;
    // Nothing was booked, so nothing can keep the slot; and if the slot stayed, it would be reaped.
    joined.member.leave().ok();
    if let Ok(ledger) = Ledger::open(&place.ledger_path(budget)) {
        // Another process may have joined meanwhile: then it stays, as it should.
        ledger.remove_if_empty().ok();
    }
    let untold = joined
        .notices
        .iter()
        .filter(|notice| !matches!(notice, Notice::StricterLimit(_)));
    Ok(untold.map(ToString::to_string).collect())
}

/// The budgets of the same name that are in use in other places, as far as this user sees them: one
/// line for each. Whoever expected to share one limit with them has two.
pub(crate) fn namesakes(place: &Place, budget: &BudgetName) -> Vec<String> {
    let own = place.ledger_path(budget);
    let others = Ledger::list(place).unwrap_or_default();
    let others = others.into_iter().filter(|listed| {
        listed.path != own && listed.path.file_name() == Some(OsStr::new(budget.as_str()))
    });
    others
        .filter(is_used)
        .map(|listed| namesake(place, budget, listed.uid))
        .collect()
}

fn is_used(listed: &Listed) -> bool {
    let members = match &listed.ledger {
        Ok(ledger) => ledger.snapshot().members,
        Err(_) => return false,
    };
    members.iter().any(|member| member.alive != Alive::No)
}

fn namesake(place: &Place, budget: &BudgetName, owner: Option<u32>) -> String {
    let another = match owner {
        None => String::from("one for all users"),
        Some(uid) if uid == geteuid().as_raw() => String::from("yours"),
        Some(uid) => match User::from_uid(Uid::from_raw(uid)).ok().flatten() {
            Some(user) => format!("one of {}", user.name),
            None => format!("one of user {uid}"),
        },
    };
    let joined = if place.shared() {
        "the one for all users"
    } else {
        "your own"
    };
    let remedy = match (owner, place.shared()) {
        (None, _) => "to join the other, add --shared",
        (Some(_), false) => "to share one, start the programs of both with --shared",
        (Some(_), true) => "to share one, start those programs with --shared, too",
    };
    format!(
        "there are two budgets {budget}, each with a limit of its own: this run joins {joined}, and \
         {another} is in use as well; {remedy}"
    )
}

fn failed(budget: &BudgetName, error: &JoinError) -> Failure {
    Failure::refused(
        format!("cannot use the account of budget {budget}: {error}"),
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hipflex_ledger::{GpuKey, Limit};

    const GPU: [GpuSpec; 1] = [GpuSpec {
        key: GpuKey(0x300),
        limit: Limit::Bytes(1 << 30),
        board_bytes: 0,
    }];

    fn place() -> (tempfile::TempDir, Place) {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(directory.path().join("ledgers"), false);
        (directory, place)
    }

    #[test]
    fn fresh_names_tell_the_program_and_are_valid() {
        let (_directory, place) = place();
        for (program, start) in [
            ("/usr/bin/python3", "python3-"),
            ("./train_all.sh", "train_all-sh-"),
            ("训练", "run-"),
            ("...", "run-"),
            ("/", "run-"),
            (&"x".repeat(300), "xxxxxxxxxxxxxxxxxxxxxxxx-"),
        ] {
            let name = fresh(Path::new(program), &place).unwrap();
            assert!(name.as_str().starts_with(start), "{name}");
        }
    }

    #[test]
    fn fresh_names_differ() {
        let (_directory, place) = place();
        let names: Vec<_> = (0..20)
            .map(|_| fresh(Path::new("app"), &place).unwrap())
            .collect();
        // Those of one nanosecond would be the same only as long as no ledger has been made.
        for name in &names {
            let joined = Member::join(
                &place,
                name,
                &GPU,
                &Identity {
                    comm: Vec::new(),
                    library_version: String::new(),
                },
            );
            drop(joined);
            assert_ne!(fresh(Path::new("app"), &place).unwrap(), *name);
        }
    }

    #[test]
    fn namesakes_elsewhere_are_told_while_they_are_used() {
        let (directory, own) = place();
        let shared = Place::new(directory.path().join("ledgers"), true);
        let budget = BudgetName::new("team").unwrap();
        let identity = Identity {
            comm: Vec::new(),
            library_version: String::new(),
        };
        assert_eq!(namesakes(&own, &budget), Vec::<String>::new());
        let joined = Member::join(&own, &budget, &GPU, &identity).unwrap();
        assert_eq!(namesakes(&own, &budget), Vec::<String>::new());
        assert_eq!(
            namesakes(&shared, &budget),
            [
                "there are two budgets team, each with a limit of its own: this run joins the one for all \
              users, and yours is in use as well; to share one, start those programs with --shared, too"
            ]
        );
        let other = BudgetName::new("team2").unwrap();
        assert_eq!(namesakes(&shared, &other), Vec::<String>::new());
        joined.member.leave().unwrap();
        assert_eq!(namesakes(&shared, &budget), Vec::<String>::new(), "unused");
        let _joined = Member::join(&shared, &budget, &GPU, &identity).unwrap();
        assert_eq!(
            namesakes(&own, &budget),
            [
                "there are two budgets team, each with a limit of its own: this run joins your own, and one \
                 for all users is in use as well; to join the other, add --shared"
            ]
        );
    }

    #[test]
    fn trying_leaves_nothing_behind() {
        let (_directory, place) = place();
        let budget = BudgetName::new("team").unwrap();
        assert_eq!(
            try_joining(&place, &budget, &GPU).unwrap(),
            Vec::<String>::new()
        );
        assert!(!place.ledger_path(&budget).exists());
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = Place::new(file.path(), false);
        let budget = BudgetName::new("team").unwrap();
        let message = try_joining(&place, &budget, &GPU).unwrap_err().to_string();
        assert!(message.contains("budget team") && message.contains(file.path().to_str().unwrap()));
    }
}
