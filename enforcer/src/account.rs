//! This process's part of a budget: the only place that knows the ledger.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;

use hipflex_ledger::{
    Denial, DenialReason, GpuKey, GpuSpec, GpuView, HookEngine, Identity, Member, Reservation,
};

use crate::clock;
use crate::devices::{Devices, Gpu};
use crate::entries::Api;
use crate::live::{Block, LiveBlocks};
use crate::refusal::{self, Pace};
use crate::runtime;
use crate::settings::Budget;
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
    /// This membership has ended: begin anew and ask again.
    NotAMember,
}

impl Account {
    /// Joins the budget with the GPUs of this machine. The error is a text for the user.
    pub(crate) fn open(budget: Budget) -> Result<Self, String> {
        let devices = Devices::find()?;
        let addresses: Vec<String> = devices
            .gpus()
            .iter()
            .map(|gpu| gpu.bdf.to_string())
            .collect();
        let told = |error| format!("FH_MEMORY_LIMIT: {error}");
        budget
            .limit
            .check_named(addresses.iter().map(String::as_str))
            .map_err(told)?;
        let specs = devices
            .gpus()
            .iter()
            .zip(&addresses)
            .map(|(gpu, address)| {
                Ok(GpuSpec {
                    key: GpuKey(gpu.bdf.to_u64()),
                    limit: budget
                        .limit
                        .resolve(address, gpu.board_bytes)
                        .map_err(told)?,
                    board_bytes: gpu.board_bytes,
                })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let identity = Identity {
            comm: fs::read("/proc/self/comm").map_or_else(|_| Vec::new(), without_line_end),
            library_version: String::from(env!("CARGO_PKG_VERSION")),
        };
        let joined = Member::join(&budget.place, &budget.name, &specs, &identity)
            .map_err(|error| error.to_string())?;
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

    /// Reserves `bytes` on the device that is current in this thread.
    pub(crate) fn reserve_on_current_device(
        &self,
        api: Api,
        bytes: u64,
    ) -> Result<Reservation, NotReserved> {
        // Without a current device, or on a GPU that is not ours, nothing may be had: whatever
        // was got there could not be counted.
        let gpu = self.current_gpu().ok_or(NotReserved::Refused)?;
        self.member.reserve(gpu, bytes).map_err(|denial| {
            if denial.reason == DenialReason::NotAMember {
                return NotReserved::NotAMember;
            }
            self.refused(api, gpu, &denial);
            NotReserved::Refused
        })
    }

    /// Books a block that was reserved: the runtime has made it, at `pointer`.
    pub(crate) fn book(&self, reservation: Reservation, pointer: usize) {
        let block = Block {
            pointer,
            bytes: reservation.bytes(),
            gpu: reservation.gpu(),
        };
        match self.live.insert(block) {
            Ok(None) => {}
            Ok(Some(gone)) => {
                tracing::warn!(
                    "the runtime gave {pointer:#x} again, so {} bytes there were freed in a way that is \
                     not hooked",
                    gone.bytes
                );
                self.member.release(gone.gpu, gone.bytes);
            }
            Err(_) => tracing::warn!(
                "no memory to remember the block at {pointer:#x}: its {} bytes stay booked until this \
                 process ends",
                block.bytes
            ),
        }
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
        self.live
            .take(pointer)
            .or_else(|| self.live.take_containing(pointer))
    }

    /// The runtime has freed a block: its bytes are given back.
    pub(crate) fn freed(&self, block: Block) {
        tracing::debug!("freed {} bytes at {:#x}", block.bytes, block.pointer);
        self.member.release(block.gpu, block.bytes);
    }

    /// The runtime did not free a block: it is known again.
    pub(crate) fn not_freed(&self, block: Block) {
        if self.live.insert(block).is_err() {
            tracing::warn!(
                "no memory to remember the block at {:#x} again",
                block.pointer
            );
        }
    }

    /// The account of the device that is current in this thread.
    pub(crate) fn view_of_current_device(&self) -> Option<GpuView> {
        self.view(self.current_gpu()?)
    }

    /// The account of a HIP device.
    pub(crate) fn view_of_device(&self, device: c_int) -> Option<GpuView> {
        self.view(self.devices.index(device)?)
    }

    /// Releases this process's slot if nothing is booked. True if so.
    pub(crate) fn leave(&self) -> bool {
        self.member.leave().is_ok()
    }

    fn current_gpu(&self) -> Option<usize> {
        self.devices.index(runtime::current_device().ok()?)
    }

    /// Shows what is there for this process; what died neighbours held is there, too.
    fn view(&self, gpu: usize) -> Option<GpuView> {
        let view = self.member.view(gpu)?;
        if view.others == 0 || !self.may_reap(clock::coarse_ms()) || self.member.reap() == 0 {
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
