//! A ledger seen from outside: no slot is claimed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::directory::Directory;
use crate::directory_lock::{DEADLINE, DirectoryLock};
use crate::error::{ChangeError, JoinError, OpenError, PlaceError, SystemError};
use crate::fault::fault_point;
use crate::file::{self, Access, LedgerFile, Names, View};
use crate::gpu::{GpuKey, GpuSpec};
use crate::layout::{encode_host_pid, encode_limit};
use crate::limit::Limit;
use crate::liveness::At;
use crate::mapping::Mapping;
use crate::place::{BudgetName, Place, SHARED_DIRECTORY};
use crate::process::effective_uid;
use crate::prospect::{self, Prospect};
use crate::reap::{Right, Scan, Target, is_alive, reap};
use crate::slot::{Claim, State};
use crate::snapshot::{self, Witnesses};
use crate::sync::Ordering;
use crate::sys;
use crate::view::{Alive, LedgerSnapshot, Reaped};

/// An open ledger. Reading needs only permission to read the file.
///
/// What is looked at is a private copy, so that whoever owns the file cannot end the one who looks by
/// cutting it. For changes the file is mapped, for a moment and after its size was looked at: a file
/// that is cut in that moment does end the process.
///
/// Not for processes that are members of the same ledger: looking at it drops the lock by which
/// others can tell a member's PID (nothing else depends on that one).
#[derive(Debug)]
pub struct Ledger {
    ledger: LedgerFile,
    directory: Directory,
    names: Names,
    path: PathBuf,
    writable: bool,
}

/// One entry of [`Ledger::list`].
#[derive(Debug)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// The user in whose directory it lies; `None` for the directory of all users.
    pub uid: Option<u32>,
    /// The ledger, or why it cannot be read.
    pub ledger: Result<Ledger, OpenError>,
}

impl Ledger {
    /// Opens a ledger and checks everything about it; read-only where writing is not permitted.
    /// Root may open those of all users, others their own and the shared ones.
    ///
    /// # Errors
    /// [`OpenError`] says what does not fit.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        match Self::open_with(path, true) {
            Err(OpenError::System(error))
                if matches!(
                    error.source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Self::open_with(path, false)
            }
            result => result,
        }
    }

    /// Opens a ledger for reading only, whatever is permitted.
    ///
    /// # Errors
    /// [`OpenError`] says what does not fit.
    pub fn open_read_only(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, writable: bool) -> Result<Self, OpenError> {
        let not_a_ledger = || OpenError::NotALedger(path.to_owned());
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(not_a_ledger)?;
        let budget = BudgetName::new(name).map_err(|_| not_a_ledger())?;
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(not_a_ledger()),
        };
        let shared = parent
            .file_name()
            .is_some_and(|name| name == SHARED_DIRECTORY);
        let uid = effective_uid();
        let owner = (uid != 0 && !shared).then_some(uid);
        let directory = Directory::open(parent, owner, shared).map_err(|error| match error {
            PlaceError::System(error) if error.source.kind() == io::ErrorKind::NotFound => {
                OpenError::Missing(path.to_owned())
            }
            PlaceError::System(error) => OpenError::System(error),
            error => OpenError::Directory(Box::new(error)),
        })?;
        let names = Names::of(&budget)?;
        let access = Access {
            writable,
            view: View::Copy,
            owner,
        };
        let ledger = file::open(&directory, &names.ledger, access)?;
        let path = directory.path_of(&names.ledger);
        Ok(Self {
            ledger,
            directory,
            names,
            path,
            writable,
        })
    }

    /// Every ledger of this user and the shared ones; those of all users when called by root.
    /// Both kinds are listed whether or not `place` is shared, sorted by user and name. A root that
    /// does not exist has none.
    ///
    /// # Errors
    /// When the root exists and cannot be read.
    pub fn list(place: &Place) -> Result<Vec<Listed>, PlaceError> {
        let own = effective_uid();
        let mut listed = Vec::new();
        for directory in names_in(place.root())? {
            let uid = directory.parse::<u32>().ok();
            let mine = uid == Some(own) || own == 0 && uid.is_some();
            if !mine && directory != SHARED_DIRECTORY {
                continue;
            }
            let path = place.root().join(&directory);
            let ledgers = match names_in(&path) {
                Ok(ledgers) => ledgers,
                // What cannot be listed is an entry of its own, so that it is seen.
                Err(error) => {
                    let ledger = Err(OpenError::Directory(Box::new(error)));
                    listed.push(Listed { path, uid, ledger });
                    continue;
                }
            };
            for name in ledgers
                .into_iter()
                .filter(|name| BudgetName::new(name).is_ok())
            {
                let path = path.join(name);
                let ledger = Self::open(&path);
                // It may have been removed meanwhile.
                if !matches!(ledger, Err(OpenError::Missing(_))) {
                    listed.push(Listed { path, uid, ledger });
                }
            }
        }
        listed.sort_by(|a, b| (a.uid, &a.path).cmp(&(b.uid, &b.path)));
        Ok(listed)
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether changes are possible.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether it is still the ledger of its budget. It is not once it was removed or replaced; what
    /// it shows is history then.
    #[must_use]
    pub fn is_current(&self) -> bool {
        file::is_current(&self.directory, &self.names.ledger, self.ledger.id)
    }

    /// A plain copy of everything.
    #[must_use]
    pub fn snapshot(&self) -> LedgerSnapshot {
        let owners = file::open_owners(&self.directory, &self.names);
        let owners: Option<OwnedFd> = owners.filter(|_| self.is_current());
        let witnesses = Witnesses {
            ledger: self.ledger.fd.as_fd(),
            owners: owners.as_ref().map(AsFd::as_fd),
        };
        match Mapping::copy(self.ledger.fd.as_fd(), self.ledger.map.geometry()) {
            Ok(copy) => snapshot::take(&copy, &self.path, &witnesses),
            // Without memory for a fresh copy there is the one that was made at the beginning.
            Err(_) => snapshot::take(&self.ledger.map, &self.path, &witnesses),
        }
    }

    /// What a process that is no member, and brings this limit, would find of one GPU when the ledger was
    /// opened. For members of the same ledger, too: nothing is touched by which members are told.
    #[must_use]
    pub fn prospect(&self, gpu: &GpuSpec) -> Prospect {
        prospect::of(&self.ledger.map, self.ledger.fd.as_fd(), gpu)
    }

    /// Clears the slots of dead members, each exactly once whoever reaps at the same time. Nobody is
    /// waited for: while another process joins or removes a ledger, the dead are left for next time.
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only, or its lock or memory cannot be used.
    pub fn reap(&self) -> Result<Vec<Reaped>, ChangeError> {
        self.must_be_writable()?;
        if !self.somebody_is_dead(&self.look()?) {
            return Ok(Vec::new());
        }
        // With the slots' locks alone a newcomer that meets this process in a slot would take it for
        // a member that lives.
        match DirectoryLock::take(&self.directory, Duration::ZERO) {
            Ok(lock) => Ok(self.reap_with(&self.map_to_write()?, &Right::holding(&lock))),
            Err(JoinError::LockBusy { .. }) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// A copy of what is in the file now.
    fn look(&self) -> Result<Mapping, ChangeError> {
        let copy = Mapping::copy(self.ledger.fd.as_fd(), self.ledger.map.geometry())
            .map_err(|error| self.error("cannot read", error))?;
        self.must_be_whole()?;
        Ok(copy)
    }

    /// The file itself.
    fn map_to_write(&self) -> Result<Mapping, ChangeError> {
        self.must_be_writable()?;
        self.must_be_whole()?;
        Mapping::new(self.ledger.fd.as_fd(), self.ledger.map.geometry(), true)
            .map_err(|error| self.error("cannot map", error))
    }

    fn must_be_whole(&self) -> Result<(), ChangeError> {
        let status = sys::status(self.ledger.fd.as_fd())
            .map_err(|error| self.error("cannot examine", error))?;
        if status.size == self.ledger.map.geometry().file_size() as u64 {
            return Ok(());
        }
        Err(OpenError::Damaged {
            path: self.path.clone(),
            what: "its size has changed",
        }
        .into())
    }

    fn error(&self, attempt: &'static str, source: io::Error) -> ChangeError {
        self.directory
            .error(attempt, &self.names.ledger, source)
            .into()
    }

    /// Whether there is a slot that the holder of the directory's lock may clear.
    fn somebody_is_dead(&self, copy: &Mapping) -> bool {
        let fd = self.ledger.fd.as_fd();
        copy.slots().iter().enumerate().any(|(index, slot)| {
            let state = Claim::load(&slot.claim).state();
            !matches!(state, State::Free | State::Invalid)
                && match is_alive(copy, fd, index, slot) {
                    Alive::No => true,
                    Alive::Yes => false,
                    Alive::Unknown => state == State::Claiming,
                }
        })
    }

    fn reap_with(&self, map: &Mapping, right: &Right<'_>) -> Vec<Reaped> {
        let at = At {
            directory: Some(self.directory.fd()),
            name: &self.names.ledger,
        };
        let target = Target {
            map,
            at,
            file: self.ledger.id,
        };
        let mut reaped = Vec::new();
        reap(target, right, Scan::All, &mut |cleared| {
            reaped.push(cleared.describe(map));
        });
        reaped
    }

    /// Reaps, and removes the ledger if no member is left; `false` if one is, if the file has been
    /// removed or replaced by another meanwhile, or if only its owner may remove it (a shared one of
    /// another user; the next who joins makes it anew in its place).
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or its lock cannot be had.
    pub fn remove_if_empty(&self) -> Result<bool, ChangeError> {
        self.must_be_writable()?;
        let lock = DirectoryLock::take(&self.directory, DEADLINE)?;
        fault_point!(RemoveLocked);
        if !self.is_current() {
            return Ok(false);
        }
        if self.somebody_is_dead(&self.look()?) {
            self.reap_with(&self.map_to_write()?, &Right::holding(&lock));
        }
        let copy = self.look()?;
        let mut slots = copy.slots().iter();
        if slots.any(|slot| Claim::load(&slot.claim).state() != State::Free) {
            return Ok(false);
        }
        fault_point!(RemoveDecided);
        Ok(file::remove(&self.directory, &self.names)?)
    }

    /// Changes the ledger's limit on one GPU. It holds at once for all members without a stricter
    /// limit of their own. Nothing is freed.
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or has no such GPU.
    pub fn set_limit(&self, gpu: GpuKey, limit: Limit) -> Result<(), ChangeError> {
        let map = self.map_to_write()?;
        let records = map.gpus();
        let record = records
            .iter()
            .find(|record| record.key.load(Ordering::Relaxed) == gpu.0);
        let record = record.ok_or_else(|| ChangeError::UnknownGpu {
            path: self.path.clone(),
            gpu,
        })?;
        record.limit.store(encode_limit(limit), Ordering::Release);
        Ok(())
    }

    /// Tells a member its PID in the initial PID namespace. Slot and generation are those of a
    /// [`crate::MemberSnapshot`].
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or the slot has another owner by now.
    pub fn set_host_pid(&self, slot: usize, generation: u64, pid: u32) -> Result<(), ChangeError> {
        let map = self.map_to_write()?;
        let owned =
            |claim: Claim| claim.state() == State::Claimed && claim.generation() == generation;
        let gone = || ChangeError::UnknownMember {
            path: self.path.clone(),
            slot,
            generation,
        };
        let record = map.slot(slot).ok_or_else(gone)?;
        if !owned(Claim::load(&record.claim)) {
            return Err(gone());
        }
        // The next owner clears it when it moves in; if that was before the store, it is nobody's by
        // its generation.
        let word = encode_host_pid(pid, generation);
        record.host_pid.store(word, Ordering::Release);
        if !owned(Claim::load(&record.claim)) {
            return Err(gone());
        }
        Ok(())
    }

    fn must_be_writable(&self) -> Result<(), ChangeError> {
        if self.writable() {
            Ok(())
        } else {
            Err(ChangeError::ReadOnly(self.path.clone()))
        }
    }
}

/// The names in a directory that are valid text; none if it does not exist.
fn names_in(path: &Path) -> Result<Vec<String>, PlaceError> {
    let failed = |source| SystemError {
        attempt: "cannot list",
        path: path.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(
            entry
                .map_err(failed)?
                .file_name()
                .to_str()
                .map(str::to_owned),
        );
    }
    Ok(names)
}
