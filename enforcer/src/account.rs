//! This process's part of a budget: the only place that knows the ledger.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;

use hipflex_ledger::{
    Denial, DenialReason, GpuKey, GpuView, HookEngine, Identity, Limit, Member, Reservation,
};

use crate::clock;
use crate::devices::{Devices, Gpu};
use crate::entries::{Api, count_accident};
use crate::live::{Block, LiveBlocks};
use crate::process::Trouble;
use crate::refusal::{self, Pace};
use crate::settings::{Budget, FailMode};
use crate::signals::uncancelled;
use crate::stderr::say;

/// How often, at most, a query looks for members that have died, in milliseconds. (A request that
/// would be refused always looks.)
const REAP_INTERVAL: u64 = 100;

/// The membership in a budget, and what is booked in it.
pub(crate) struct Account {
    member: Member,
    live: LiveBlocks,
    devices: Devices,
    budget: String,
    /// How refusals are told, by GPU.
    paces: Vec<Pace>,
    /// When a query last looked for dead members ([`clock::coarse_ms`]).
    reaped_at: AtomicU64,
}

/// Why nothing was reserved.
pub(crate) enum NotReserved {
    /// The request is refused; the user was told what there is to tell.
    Refused,
    /// The request is not counted, as the user wanted (`FH_FAIL_MODE=open`) and was told.
    Uncounted,
    /// This membership has ended: begin anew and ask again.
    NotAMember,
}

/// Where a HIP device is in the account.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// At this index.
    Gpu(usize),
    /// Nowhere: nothing may be had there, since it could not be counted.
    Refused,
    /// Nowhere: what is had there is not counted (`FH_FAIL_MODE=open`).
    Uncounted,
}

impl Account {
    /// Joins the budget with the GPUs of this machine. The error has a text for the user.
    pub(crate) fn open(budget: Budget) -> Result<Self, Trouble> {
        let devices = Devices::find(budget.fail_mode)?;
        let gpus = devices.gpus().iter();
        let specs = budget
            .limit
            .on(gpus.map(|gpu| {
                let key = GpuKey(gpu.bdf.to_u64());
                (key, gpu.bdf.to_string(), gpu.board_bytes)
            }))
            .map_err(|error| Trouble::Configuration(format!("FH_MEMORY_LIMIT: {error}")))?;
        let identity = Identity {
            comm: fs::read("/proc/self/comm").map_or_else(|_| Vec::new(), without_line_end),
            library_version: String::from(env!("CARGO_PKG_VERSION")),
        };
        let joined = Member::join(&budget.place, &budget.name, &specs, &identity)
            .map_err(|error| Trouble::Passing(error.to_string()))?;
        for notice in &joined.notices {
            say!("{notice}");
        }
        for api in Api::ALL {
            joined
                .member
                .set_engine(api as usize, HookEngine::ExportOnly);
        }
        tracing::info!("joined the budget '{}'", budget.name.as_str());
        Ok(Self {
            member: joined.member,
            live: LiveBlocks::new(),
            paces: specs.iter().map(|_| Pace::default()).collect(),
            devices,
            budget: budget.name.as_str().to_owned(),
            reaped_at: AtomicU64::new(0),
        })
    }

    /// Reserves `bytes` on a device (or what the runtime said instead of one).
    #[inline]
    pub(crate) fn reserve(
        &self,
        api: Api,
        device: Result<c_int, c_int>,
        bytes: u64,
    ) -> Result<Reservation, NotReserved> {
        let gpu = match self.place(device) {
            Place::Gpu(gpu) => gpu,
            Place::Refused => return Err(NotReserved::Refused),
            Place::Uncounted => return Err(NotReserved::Uncounted),
        };
        match self.member.reserve_at_once(gpu, bytes) {
            Some(reservation) => Ok(reservation),
            None => uncancelled(|| self.reserve_with_patience(api, gpu, bytes)),
        }
    }

    #[cold]
    fn reserve_with_patience(
        &self,
        api: Api,
        gpu: usize,
        bytes: u64,
    ) -> Result<Reservation, NotReserved> {
        self.member.reserve(gpu, bytes).map_err(|denial| {
            if denial.reason == DenialReason::NotAMember {
                return NotReserved::NotAMember;
            }
            self.refused(api, gpu, &denial);
            NotReserved::Refused
        })
    }

    /// Where a device (or what the runtime said instead of one) is in the account.
    #[inline]
    pub(crate) fn place(&self, device: Result<c_int, c_int>) -> Place {
        match (
            device.ok().and_then(|device| self.devices.index(device)),
            self.devices.fail_mode(),
        ) {
            (Some(gpu), _) => Place::Gpu(gpu),
            (None, FailMode::Closed) => Place::Refused,
            (None, FailMode::Open) => Place::Uncounted,
        }
    }

    /// Books a block that was reserved: the runtime has made it, at `pointer`.
    pub(crate) fn book(&self, reservation: Reservation, pointer: usize) {
        let block = Block {
            pointer,
            bytes: reservation.bytes(),
            gpu: reservation.gpu(),
        };
        self.remember(block);
        tracing::debug!("booked {} bytes at {pointer:#x}", block.bytes);
        self.member.commit(reservation, block.bytes);
    }

    /// Gives a reservation back: the runtime made nothing.
    pub(crate) fn cancel(&self, reservation: Reservation) {
        self.member.cancel(reservation);
    }

    /// The block that the program is about to free, if it was booked. It stays booked until
    /// [`Account::freed`] or [`Account::not_freed`]; but it is not known under its pointer any more,
    /// since another thread may be given the same pointer as soon as the runtime has freed it.
    pub(crate) fn take(&self, pointer: usize) -> Option<Block> {
        self.live.take(pointer)
    }

    /// The runtime has freed a block: its bytes are given back.
    pub(crate) fn freed(&self, block: Block) {
        tracing::debug!("freed {} bytes at {:#x}", block.bytes, block.pointer);
        self.member.release(block.gpu, block.bytes);
    }

    /// The runtime did not free a block: it is known again.
    pub(crate) fn not_freed(&self, block: Block) {
        self.remember(block);
    }

    fn remember(&self, block: Block) {
        match self.live.insert(block) {
            Ok(None) => {}
            Ok(Some(gone)) => self.gone_unseen(gone),
            Err(_) => tracing::warn!(
                "no memory to remember the block at {:#x}: its {} bytes stay booked until this process ends",
                block.pointer,
                block.bytes
            ),
        }
    }

    /// A block whose address was given anew is not there any more.
    #[cold]
    fn gone_unseen(&self, gone: Block) {
        count_accident();
        tracing::warn!(
            "the runtime gave {:#x} again, so {} bytes there were freed in a way that is not hooked",
            gone.pointer,
            gone.bytes
        );
        self.member.release(gone.gpu, gone.bytes);
    }

    /// The limit on a GPU.
    pub(crate) fn limit(&self, gpu: usize) -> Limit {
        self.member.limit(gpu).unwrap_or(Limit::Unlimited)
    }

    /// What one request could get on a GPU, by this account.
    pub(crate) fn available(&self, gpu: usize) -> u64 {
        self.view(gpu).map_or(0, |view| view.available())
    }

    /// Releases this process's slot if nothing is booked. True if so.
    pub(crate) fn leave(&self) -> bool {
        self.member.leave().is_ok()
    }

    /// Shows what is there for this process; what died neighbours held is there, too.
    fn view(&self, gpu: usize) -> Option<GpuView> {
        let view = self.member.view(gpu)?;
        if view.others == 0
            || !self.may_reap(clock::coarse_ms())
            || uncancelled(|| self.member.reap()) == 0
        {
            return Some(view);
        }
        self.member.view(gpu)
    }

    /// Whether it is time to look for dead members, and this thread is the one to do so.
    fn may_reap(&self, now: u64) -> bool {
        let last = self.reaped_at.load(Ordering::Relaxed);
        now.saturating_sub(last) >= REAP_INTERVAL
            && self
                .reaped_at
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn refused(&self, api: Api, gpu: usize, denial: &Denial) {
        let name = api.name().to_str().unwrap_or_default();
        self.member.record_refusal(gpu, denial, name);
        let told = self.devices.gpus().get(gpu).zip(self.paces.get(gpu));
        if let Some((Gpu { bdf, .. }, pace)) = told {
            refusal::tell(pace, name, *bdf, &self.budget, denial);
        }
    }
}

fn without_line_end(mut text: Vec<u8>) -> Vec<u8> {
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    text
}
