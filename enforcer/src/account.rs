//! This process's part of a budget: the only place that knows the ledger.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs;

use hipflex_ledger::{
    Denial, DenialReason, HookEngine, Identity, Kind, Limit, Member, Reservation, Room,
};

use crate::clock::Due;
use crate::compute_units;
use crate::devices::{Devices, Gpu};
use crate::entries::{Api, belt, count_accident};
use crate::helpers;
use crate::live::{Block, Class, LiveBlocks, Sort};
use crate::overhead::Overhead;
use crate::physical::{Change, Physical, Ticket};
use crate::process::Trouble;
use crate::refusal::{self, Pace};
use crate::runtime;
use crate::settings::{Budget, FailMode};
use crate::signals::uncancelled;
use crate::stderr::say;
use crate::tally::Tally;

/// How often, at most, a query looks for members that have died, in milliseconds. (A request that
/// would be refused always looks.)
const REAP_INTERVAL: u64 = 100;

/// The membership in a budget, and what is booked in it.
pub(crate) struct Account {
    member: Member,
    live: LiveBlocks,
    devices: Devices,
    overhead: Overhead,
    budget: String,
    /// How refusals are told, by GPU.
    paces: Vec<Pace>,
    /// When a query looks for dead members again.
    reap_due: Due,
    /// Pools have kept something, ever.
    pools_keep: AtomicBool,
    /// Graphs of this process may allocate when they run.
    graphs_allocate: AtomicBool,
}

/// Bytes that are reserved for a block.
pub(crate) struct Reserved {
    reservation: Reservation,
    class: Class,
    /// What the block takes of what its pool has kept, which is booked already.
    reused: u64,
    /// Should the pool take memory anew all the same, there may be no room for it.
    needs_reuse: bool,
}

impl Reserved {
    pub(crate) fn gpu(&self) -> usize {
        self.reservation.gpu()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes().saturating_add(self.reused)
    }
}

fn kind(class: Class) -> Kind {
    match class {
        Class::Buffer | Class::Pooled | Class::OwnPool => Kind::Device,
        Class::Managed => Kind::Managed,
    }
}

/// A reset under way.
pub(crate) struct Reset {
    /// The number of the blocks that it frees.
    blocks: Option<u64>,
    /// And of the physical memory.
    ticket: Ticket,
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
        let specs = devices.limits(&budget.limit)?;
        let identity = Identity {
            comm: fs::read("/proc/self/comm").map_or_else(|_| Vec::new(), without_line_end),
            library_version: String::from(env!("CARGO_PKG_VERSION")),
        };
        let joined = Member::join(&budget.place, &budget.name, &specs, &identity)
            .map_err(|error| Trouble::Passing(error.to_string()))?;
        for notice in &joined.notices {
            say!("{notice}");
        }
        if let Some(mask) = compute_units::shown() {
            joined.member.set_compute_units(mask.words());
        }
        tracing::info!("joined the budget '{}'", budget.name.as_str());
        let account = Self {
            member: joined.member,
            live: LiveBlocks::new(devices.gpus().len()),
            overhead: Overhead::new(devices.gpus().iter().map(|gpu| gpu.gpu_id)),
            paces: specs.iter().map(|_| Pace::default()).collect(),
            devices,
            budget: budget.name.as_str().to_owned(),
            reap_due: Due::at_once(),
            pools_keep: AtomicBool::new(false),
            graphs_allocate: AtomicBool::new(false),
        };
        account.show_engines();
        Ok(account)
    }

    /// Shows in the ledger how each function is hooked, in the runtime that came first.
    pub(crate) fn show_engines(&self) {
        for api in Api::ALL {
            let engine = runtime::first().map_or(HookEngine::ExportOnly, |first| first.engine(api));
            self.member.set_engine(api as usize, engine);
        }
    }

    /// Reserves `bytes` on a device (or what the runtime said instead of one).
    #[inline]
    pub(crate) fn reserve(
        &self,
        api: Api,
        device: Result<c_int, c_int>,
        bytes: u64,
        class: Class,
    ) -> Result<Reserved, NotReserved> {
        let gpu = match self.place(device) {
            Place::Gpu(gpu) => gpu,
            Place::Refused => return Err(NotReserved::Refused),
            Place::Uncounted => return Err(NotReserved::Uncounted),
        };
        if self.overhead.is_due(gpu) {
            self.measure(gpu, device);
        }
        // The default pool of a second runtime is another one.
        let class = match class {
            Class::Pooled if this_runtime() != 0 => Class::OwnPool,
            class => class,
        };
        let reused = self.reuse(gpu, class, bytes);
        let anew = bytes.saturating_sub(reused);
        // Before it is in the books: when the overhead is measured meanwhile, it may already be with the driver.
        self.overhead.expect(gpu, class, bytes);
        let reservation = match self.member.reserve_at_once_as(kind(class), gpu, anew) {
            Some(reservation) => reservation,
            None => {
                self.overhead.expect_no_more(gpu, class, bytes);
                self.keep(gpu, class, reused);
                return uncancelled(|| self.reserve_with_patience(api, gpu, device, bytes, class));
            }
        };
        Ok(self.reserved(reservation, class, reused))
    }

    #[inline]
    fn reserved(&self, reservation: Reservation, class: Class, reused: u64) -> Reserved {
        let gpu = reservation.gpu();
        let needs_reuse = reused != 0
            && self
                .member
                .view(gpu)
                .is_some_and(|view| view.available() < reused);
        Reserved {
            reservation,
            class,
            reused,
            needs_reuse,
        }
    }

    #[cold]
    fn reserve_with_patience(
        &self,
        api: Api,
        gpu: usize,
        device: Result<c_int, c_int>,
        bytes: u64,
        class: Class,
    ) -> Result<Reserved, NotReserved> {
        // What the runtime has given back to the driver since is no overhead any more.
        self.measure(gpu, device);
        let reused = self.reuse(gpu, class, bytes);
        self.overhead.expect(gpu, class, bytes);
        self.member
            .reserve_as(kind(class), gpu, bytes.saturating_sub(reused))
            .map(|reservation| self.reserved(reservation, class, reused))
            .map_err(|denial| {
                self.overhead.expect_no_more(gpu, class, bytes);
                self.keep(gpu, class, reused);
                self.not_reserved(api, gpu, &denial)
            })
    }

    /// Takes of what pools have kept of freed blocks, for a new one.
    #[inline]
    fn reuse(&self, gpu: usize, class: Class, bytes: u64) -> u64 {
        match class {
            Class::Buffer | Class::Managed => 0,
            Class::Pooled | Class::OwnPool => {
                self.change_pools(gpu, |tally| tally.reuse(class, bytes))
            }
        }
    }

    /// Changes what pools have kept, and shows it.
    fn change_pools<R: Default>(&self, gpu: usize, change: impl FnOnce(&mut Tally) -> R) -> R {
        let changed = self.live.change_tally(gpu, |tally| {
            let result = change(tally);
            // In the same order as it is changed.
            self.member.set_kept(gpu, tally.kept());
            result
        });
        changed.unwrap_or_default()
    }

    /// A pool keeps this of a freed block.
    fn keep(&self, gpu: usize, class: Class, bytes: u64) {
        if bytes != 0 {
            self.change_pools(gpu, |tally| tally.keep(class, bytes));
        }
    }

    /// The pools of a device may have let go of what they had kept. A native call.
    pub(crate) fn settle_pools(&self, gpu: usize, device: c_int) {
        let kept = self.live.tally(gpu).kept();
        if kept == 0 {
            return;
        }
        self.lower_default_pool(gpu, device);
        // Those that the program has made tell nothing: the driver does.
        if self.live.tally(gpu).has_kept_of_own_pools() {
            self.measure(gpu, Ok(device));
        }
    }

    /// The default pool says itself what it has kept. A native call.
    fn lower_default_pool(&self, gpu: usize, device: c_int) {
        // What is known to be in it is in that of the first runtime.
        if this_runtime() == 0
            && self.live.tally(gpu).kept() != 0
            && helpers::uses_default_pool(device)
            && let Some(reserved) = helpers::reserved_by_default_pool(device)
        {
            let gone = self.change_pools(gpu, |tally| tally.lower_default_pool(reserved.unused));
            self.give_back(gpu, gone);
        }
    }

    fn give_back(&self, gpu: usize, bytes: u64) {
        if bytes != 0 {
            self.member.give_back(gpu, bytes);
        }
    }

    /// The same of all devices. A native call.
    pub(crate) fn settle_all_pools(&self) {
        for device in 0..helpers::device_count().unwrap_or(0) {
            if let Some(gpu) = self.devices.index(device) {
                self.settle_pools(gpu, device);
            }
        }
    }

    /// The same of the device that is this GPU. A native call.
    pub(crate) fn settle_pools_of(&self, gpu: usize) {
        let is_it = |device: &c_int| self.devices.index(*device) == Some(gpu);
        let current = helpers::current_device().ok().filter(is_it);
        let device = current.or_else(|| (0..helpers::device_count().unwrap_or(0)).find(is_it));
        if let Some(device) = device {
            self.lower_default_pool(gpu, device);
        }
    }

    /// A graph has been given a node that allocates.
    pub(crate) fn graphs_allocate(&self) {
        self.graphs_allocate.store(true, Ordering::Relaxed);
    }

    /// A graph runs: what it takes is known to the driver alone, which the next request asks.
    #[inline]
    pub(crate) fn graph_was_launched(&self) {
        if self.graphs_allocate.load(Ordering::Relaxed) {
            for gpu in 0..self.devices.gpus().len() {
                self.overhead.hurry(gpu);
            }
        }
    }

    /// Whether pools have kept anything that is booked.
    #[inline]
    pub(crate) fn pools_keep(&self) -> bool {
        self.pools_keep.load(Ordering::Relaxed)
            && (0..self.devices.gpus().len()).any(|gpu| self.live.tally(gpu).kept() != 0)
    }

    /// Enlarges a reservation to `bytes`. What was refused leaves it as it was.
    fn enlarge(
        &self,
        api: Api,
        reserved: &mut Reserved,
        device: Result<c_int, c_int>,
        bytes: u64,
    ) -> Result<(), NotReserved> {
        let extra = bytes.saturating_sub(reserved.bytes());
        if extra == 0 {
            return Ok(());
        }
        let (gpu, class, before) = (reserved.gpu(), reserved.class, reserved.bytes());
        if self.member.grow(&mut reserved.reservation, extra).is_err() {
            // As before any refusal.
            self.measure(gpu, device);
            self.member
                .grow(&mut reserved.reservation, extra)
                .map_err(|denial| self.not_reserved(api, gpu, &denial))?;
        }
        self.overhead
            .expect_instead(gpu, class, before, reserved.bytes());
        Ok(())
    }

    /// Makes a reservation one of `bytes` on `device`, if that is known to be another one than it was
    /// expected on. What was refused leaves it as it was.
    pub(crate) fn fit(
        &self,
        api: Api,
        reserved: &mut Reserved,
        device: Option<c_int>,
        bytes: u64,
    ) -> Result<(), NotReserved> {
        let elsewhere = device.filter(
            |device| !matches!(self.place(Ok(*device)), Place::Gpu(gpu) if gpu == reserved.gpu()),
        );
        match elsewhere {
            None => {
                // A native call; the device matters for its pools alone.
                let device = device.map_or_else(helpers::current_device, Ok);
                self.enlarge(api, reserved, device, bytes)
            }
            Some(device) => {
                let there = self.reserve(api, Ok(device), bytes, reserved.class)?;
                self.cancel(core::mem::replace(reserved, there));
                Ok(())
            }
        }
    }

    fn not_reserved(&self, api: Api, gpu: usize, denial: &Denial) -> NotReserved {
        if denial.reason == DenialReason::NotAMember {
            return NotReserved::NotAMember;
        }
        self.refused(api, gpu, denial);
        NotReserved::Refused
    }

    fn measure(&self, gpu: usize, device: Result<c_int, c_int>) {
        if let Ok(device) = device {
            uncancelled(|| {
                self.lower_default_pool(gpu, device);
                self.overhead.measure(&self.member, &self.live, gpu, device);
            });
        }
    }

    /// A call begins of which the runtime's answer will tell where its memory is, or how much it is. Until
    /// [`Account::settled`] the books may lack it.
    pub(crate) fn begin_unsettled(&self) {
        self.overhead.begin_unsettled();
    }

    /// The end of such a call.
    pub(crate) fn settled(&self) {
        self.overhead.settled();
    }

    /// Whether any GPU may have room for a request.
    pub(crate) fn may_fit(&self, bytes: u64) -> bool {
        let gpus = 0..self.devices.gpus().len();
        gpus.filter_map(|gpu| self.member.view(gpu))
            .any(|view| view.available() >= bytes)
    }

    /// Whether HIP shows more than one device to this process. (If it does not say: perhaps.)
    pub(crate) fn has_several_devices(&self) -> bool {
        self.devices.are_several()
    }

    /// What the driver has given this process on a device, in bytes, if that can be told.
    pub(crate) fn given(&self, device: c_int) -> Option<u64> {
        let gpu = belt(|| self.devices.index(device)).flatten()?;
        belt(|| uncancelled(|| self.overhead.given(&self.member, gpu)))?
            .ok()
            .flatten()
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

    /// Books a block that was reserved: the runtime has made it, under this name.
    pub(crate) fn book(&self, reserved: Reserved, sort: Sort, name: usize) {
        let bytes = reserved.bytes();
        self.book_as(reserved, sort, name, bytes);
    }

    /// The same for one that turned out to have `bytes`, for which there is no room.
    pub(crate) fn book_beyond(&self, reserved: Reserved, sort: Sort, name: usize, bytes: u64) {
        let (gpu, class, before) = (reserved.gpu(), reserved.class, reserved.bytes());
        self.overhead.expect_instead(gpu, class, before, bytes);
        self.book_as(reserved, sort, name, bytes);
    }

    #[inline]
    fn book_as(&self, reserved: Reserved, sort: Sort, name: usize, bytes: u64) {
        let Reserved {
            reservation,
            class,
            reused,
            needs_reuse,
        } = reserved;
        let gpu = reservation.gpu();
        let block = Block {
            pointer: name,
            bytes,
            gpu: u32::try_from(gpu).unwrap_or(u32::MAX),
            runtime: this_runtime(),
            sort,
            class,
        };
        // First, so that nobody gives back what is not booked yet: a reset by another thread takes every block.
        self.member
            .commit(reservation, bytes.saturating_sub(reused));
        self.remember(block);
        tracing::debug!("booked {bytes} bytes at {name:#x}");
        if needs_reuse {
            // The pool may have taken memory anew.
            self.overhead.hurry(gpu);
        }
    }

    /// Gives a reservation back: the runtime made nothing.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        let (gpu, bytes) = (reserved.gpu(), reserved.bytes());
        self.member.cancel(reserved.reservation);
        self.keep(gpu, reserved.class, reserved.reused);
        self.overhead.expect_no_more(gpu, reserved.class, bytes);
    }

    /// The block that the program is about to free, if it was booked. It stays booked until
    /// [`Account::freed`] or [`Account::not_freed`]; but it is not known by its name any more,
    /// since another thread may be given the same one as soon as the runtime has freed it.
    pub(crate) fn take(&self, sort: Sort, name: usize) -> Option<Block> {
        self.live.take(sort, name)
    }

    /// The runtime has freed a block: its bytes are given back.
    pub(crate) fn freed(&self, block: Block) {
        tracing::debug!("freed {} bytes at {:#x}", block.bytes, block.pointer);
        self.release(block);
        self.overhead.left(block.gpu as usize, block.bytes);
    }

    /// A call about physical memory begins or ends: the books follow what becomes of the blocks.
    pub(crate) fn physical<R>(
        &self,
        step: impl FnOnce(&mut Physical, &mut dyn FnMut(Change)) -> R,
    ) -> R {
        self.live
            .with_physical(step, &mut |change| self.follow(change))
    }

    /// The end of a call about physical memory, which the runtime has `done` or not.
    pub(crate) fn end_physical(&self, ticket: Ticket, done: bool) {
        self.physical(|physical, tell| physical.end(ticket, done, tell));
    }

    /// A GPU is about to be reset in the runtime of this call: its blocks are out of the books, but for what a reset leaves.
    pub(crate) fn begin_reset(&self, gpu: usize) -> Reset {
        let gpu = u32::try_from(gpu).unwrap_or(u32::MAX);
        let runtime = this_runtime();
        Reset {
            blocks: self.live.take_all(gpu, runtime),
            ticket: self.physical(|physical, tell| physical.begin_reset(gpu, runtime, tell)),
        }
    }

    /// The runtime has `done` that, or has not.
    pub(crate) fn end_reset(&self, Reset { blocks, ticket }: Reset, done: bool) {
        let gpu = ticket.gpu();
        for block in blocks.map_or_else(Vec::new, |number| self.live.taken(number)) {
            if done {
                self.freed(block);
            } else {
                self.not_freed(block);
            }
        }
        self.end_physical(ticket, done);
        // Of the pools of others nothing is known here.
        if let Some(gpu) = gpu.filter(|_| done && this_runtime() == 0) {
            let gone = self.change_pools(gpu as usize, Tally::empty_pools);
            self.give_back(gpu as usize, gone);
        }
    }

    fn follow(&self, change: Change) {
        match change {
            Change::Leaving(_) => {}
            Change::Stays(block) => self.overhead.left(block.gpu as usize, block.bytes),
            Change::Gone(block) => {
                let gpu = block.gpu as usize;
                self.release(block);
                self.overhead.left(gpu, block.bytes);
                // Should it be there after all, it is overhead from now on.
                self.overhead.hurry(gpu);
            }
        }
    }

    fn release(&self, block: Block) {
        let gpu = block.gpu as usize;
        let is_kept = match block.class {
            Class::Buffer | Class::Managed => false,
            Class::Pooled | Class::OwnPool => {
                self.change_pools(gpu, |tally| tally.keep(block.class, block.bytes))
            }
        };
        if is_kept {
            self.pools_keep.store(true, Ordering::Relaxed);
        }
        // What its pool keeps stays booked until that lets go of it.
        let given_back = if is_kept { 0 } else { block.bytes };
        self.member.release_as(kind(block.class), gpu, given_back);
        self.overhead.expect_no_more(gpu, block.class, block.bytes);
    }

    /// The runtime did not free a block: it is known again.
    pub(crate) fn not_freed(&self, block: Block) {
        self.remember(block);
        self.overhead.left(block.gpu as usize, block.bytes);
    }

    fn remember(&self, block: Block) {
        let remembered = if block.sort == Sort::Physical {
            let tell = &mut |change| self.follow(change);
            self.live.create_physical(block, tell)
        } else {
            self.live.insert(block, &mut |gone| self.gone_unseen(gone))
        };
        if remembered.is_err() {
            tracing::warn!(
                "no memory to remember the block at {:#x}: its {} bytes stay booked until this process ends",
                block.pointer,
                block.bytes
            );
        }
    }

    /// A block whose address was given anew is not there any more.
    #[cold]
    fn gone_unseen(&self, gone: Block) {
        self.release(gone);
        // There may be thousands of them, after a hipDeviceReset.
        if count_accident() == 0 {
            tracing::warn!(
                "the runtime gave {:#x} again, so {} bytes there were freed in a way that is not hooked \
                 (and others, perhaps: this is said once)",
                gone.pointer,
                gone.bytes
            );
        }
    }

    /// The limit on a GPU.
    pub(crate) fn limit(&self, gpu: usize) -> Limit {
        self.member.limit(gpu).unwrap_or(Limit::Unlimited)
    }

    /// The GPUs of this process.
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// What is charged on a GPU to all who share the budget, in bytes. The own overhead is as it was when it was
    /// last looked at.
    pub(crate) fn charged(&self, gpu: usize) -> u64 {
        self.member.view(gpu).map_or(0, |view| view.charged)
    }

    /// What is left on a GPU, by this account. `device` is its number in HIP, if the runtime tells it.
    #[inline]
    pub(crate) fn room(&self, gpu: usize, device: Result<c_int, c_int>) -> Room {
        if self.overhead.is_due(gpu) {
            self.measure(gpu, device);
        }
        // What died neighbours held is there, too.
        let room = match self.member.room(gpu) {
            Some(room) if room.shared && self.reap_due.is_now(REAP_INTERVAL) => {
                uncancelled(|| self.member.reap());
                self.member.room(gpu)
            }
            room => room,
        };
        room.unwrap_or(Room {
            limit: Limit::Unlimited,
            available: 0,
            shared: false,
        })
    }

    /// Releases this process's slot if nothing is booked. True if so.
    pub(crate) fn leave(&self) -> bool {
        self.member.leave().is_ok()
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

/// The number of the runtime that this call is of.
fn this_runtime() -> u8 {
    let number = runtime::of_this_call().map_or(0, |runtime| runtime.number());
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn without_line_end(mut text: Vec<u8>) -> Vec<u8> {
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    text
}
