//! What a member may book, what it is refused and what others see of it.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{GIB, MIB, Scene, gpu, hold, identity};
use hipflex_ledger::{
    Alive, Denial, DenialReason, GpuKey, HookEngine, Kind, Limit, LivenessMode, Member, Notice,
    Stayed, size,
};

#[test]
fn an_exact_fit_is_granted_and_one_byte_more_is_not() {
    let scene = Scene::new();
    let member = scene.join(4 * GIB);
    hold(&member, GIB);
    let rest = member.reserve(0, 3 * GIB).unwrap();
    assert_eq!((rest.gpu(), rest.bytes()), (0, 3 * GIB));
    let denial = member.reserve(0, 1).unwrap_err();
    assert_eq!(denial.reason, DenialReason::OverLimit);
    assert_eq!(denial.limit, Limit::Bytes(4 * GIB));
    assert_eq!(
        (denial.mine, denial.others, denial.overhead),
        (4 * GIB, 0, 0)
    );
    assert_eq!((denial.requested, denial.available), (1, 0));
    member.cancel(rest);
    let denial = member.reserve(0, 3 * GIB + 1).unwrap_err();
    assert_eq!((denial.mine, denial.available), (GIB, 3 * GIB));
    assert_eq!(
        denial.to_string(),
        "3.0 GiB refused: limit 4.0 GiB, held here 1.0 GiB, by others 0 B, \
         available 3.0 GiB, short by 1 B"
    );
    let view = member.view(0).unwrap();
    assert_eq!((view.charged, view.available()), (GIB, 3 * GIB));
}

#[test]
fn members_share_one_account() {
    let scene = Scene::new();
    let (a, b) = (scene.join(4 * GIB), scene.join(4 * GIB));
    hold(&a, 3 * GIB);
    let view = b.view(0).unwrap();
    assert_eq!(
        (view.charged, view.others, view.mine.live),
        (3 * GIB, 3 * GIB, 0)
    );
    let denial = b.reserve(0, 2 * GIB).unwrap_err();
    assert_eq!(
        (denial.mine, denial.others, denial.available),
        (0, 3 * GIB, GIB)
    );
    hold(&b, GIB);
    a.release(0, 3 * GIB);
    assert_eq!(b.view(0).unwrap().charged, GIB);
    hold(&b, 3 * GIB);
    assert_eq!(scene.charged(), 4 * GIB);
}

#[test]
fn the_actual_size_replaces_the_estimate() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    let mut pitched = member.reserve(0, 100 * MIB).unwrap();
    member.grow(&mut pitched, 28 * MIB).unwrap();
    assert_eq!(pitched.bytes(), 128 * MIB);
    assert!(member.grow(&mut pitched, GIB).is_err());
    assert_eq!(pitched.bytes(), 128 * MIB);
    member.commit(pitched, 120 * MIB);
    let mine = member.view(0).unwrap().mine;
    assert_eq!(
        (mine.live, mine.pending, mine.peak),
        (120 * MIB, 0, 120 * MIB)
    );
    member.release(0, 120 * MIB);
    let mine = member.view(0).unwrap().mine;
    assert_eq!((mine.live, mine.peak), (0, 120 * MIB));
}

#[test]
fn nothing_wraps_and_nothing_goes_below_zero() {
    let scene = Scene::new();
    let unlimited = scene.try_join(&[gpu(0, Limit::Unlimited)]).unwrap().member;
    for absurd in [u64::MAX, u64::MAX / 2, size::MAX_BYTES + 1] {
        let denial = unlimited.reserve(0, absurd).unwrap_err();
        assert_eq!(denial.reason, DenialReason::TooLarge);
        assert_eq!(unlimited.view(0).unwrap().charged, 0);
    }
    // Even without a limit two requests that would wrap together do not get in.
    let first = unlimited.reserve(0, size::MAX_BYTES).unwrap();
    assert_eq!(
        unlimited.reserve(0, size::MAX_BYTES).unwrap_err().reason,
        DenialReason::OverLimit
    );
    let other = scene.try_join(&[gpu(0, Limit::Unlimited)]).unwrap().member;
    let more: Vec<_> = std::iter::from_fn(|| other.reserve(0, size::MAX_BYTES).ok()).collect();
    assert_eq!(more.len(), 1);
    let view = other.view(0).unwrap();
    assert_eq!(view.charged, 2 * size::MAX_BYTES);
    more.into_iter().for_each(|r| other.cancel(r));
    unlimited.cancel(first);
    assert_eq!(other.view(0).unwrap().charged, 0);

    unlimited.release(0, MIB);
    let snapshot = scene.ledger().snapshot();
    assert_eq!(snapshot.gpus[0].charged, 0);
    assert_eq!(snapshot.anomalies, 1);
    assert_eq!(snapshot.members[0].anomalies, 1);
}

#[test]
fn overhead_counts_and_leaves_nothing_when_it_reaches_the_limit() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    member.set_overhead(0, 256 * MIB);
    assert_eq!(member.view(0).unwrap().available(), 768 * MIB);
    member.set_overhead(0, 2 * GIB);
    assert_eq!(member.view(0).unwrap().available(), 0);
    let denial = member.reserve(0, 1).unwrap_err();
    assert_eq!((denial.overhead, denial.available), (2 * GIB, 0));
    // Freed caches are not overhead any more once that is known.
    member.set_overhead(0, 0);
    hold(&member, GIB);
}

#[test]
fn overhead_that_is_not_known_any_more_is_not_charged() {
    let scene = Scene::new();
    let (member, other) = (scene.join(GIB), scene.join(GIB));
    for _ in 0..2 {
        member.set_overhead(0, 256 * MIB);
        assert_eq!(member.cell(0).unwrap().overhead, Some(256 * MIB));
        assert_eq!(other.view(0).unwrap().others, 256 * MIB);
        member.forget_overhead(0);
        let view = member.view(0).unwrap();
        assert_eq!((view.mine.overhead, view.charged), (None, 0));
        assert_eq!(other.view(0).unwrap().others, 0);
        assert_eq!(scene.charged(), 0);
        let all = other.reserve(0, GIB).unwrap();
        other.cancel(all);
    }
    // What is not there can be forgotten.
    member.forget_overhead(0);
    member.forget_overhead(1);
    member.leave().unwrap();
    member.forget_overhead(0);
}

#[test]
fn a_member_sees_its_own_figures_without_a_sum() {
    let scene = Scene::new();
    let gpus = [0, 1].map(|n| gpu(n, Limit::Bytes(GIB)));
    let member = scene.try_join(&gpus).unwrap().member;
    let other = scene.join(GIB);
    hold(&other, 9 * MIB);
    hold(&member, 3 * MIB);
    let pending = member.reserve(1, MIB).unwrap();
    for n in 0..2 {
        assert_eq!(member.cell(n), Some(member.view(n).unwrap().mine));
    }
    assert_eq!(member.cell(0).unwrap().live, 3 * MIB);
    assert_eq!(member.cell(1).unwrap().pending, MIB);
    assert_eq!(member.cell(2), None);
    member.cancel(pending);
    member.release(0, 3 * MIB);
    member.leave().unwrap();
    assert_eq!(member.cell(0), None);
}

#[test]
fn a_member_knows_the_pid_that_an_observer_tells() {
    let scene = Scene::new();
    let (keeper, member) = (scene.join(GIB), scene.join(GIB));
    let ledger = scene.ledger();
    assert_eq!(member.host_pid(), None);
    ledger.set_host_pid(1, 1, 4242).unwrap();
    assert_eq!(member.host_pid(), Some(4242));
    assert_eq!(keeper.host_pid(), None);
    // A forked child is another process.
    common::spawn(|_| i32::from(member.host_pid().is_some())).succeed();
    ledger.set_host_pid(1, 1, 0).unwrap();
    assert_eq!(member.host_pid(), None);
    ledger.set_host_pid(1, 1, 4242).unwrap();
    member.leave().unwrap();
    assert_eq!(member.host_pid(), None);
    // Nor is the slot's next owner told.
    let next = scene.join(GIB);
    assert_eq!(next.host_pid(), None);
    assert!(ledger.set_host_pid(1, 1, 4242).is_err());
    ledger.set_host_pid(1, 2, 4343).unwrap();
    assert_eq!((next.host_pid(), member.host_pid()), (Some(4343), None));
}

#[test]
fn memory_of_any_kind_is_reserved_at_once_where_that_is_possible() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    let device = member.reserve_at_once(0, MIB).unwrap();
    let managed = member.reserve_at_once_as(Kind::Managed, 0, MIB).unwrap();
    assert_eq!(
        (device.kind(), managed.kind()),
        (Kind::Device, Kind::Managed)
    );
    member.commit(device, MIB);
    member.commit(managed, MIB);
    let mine = member.cell(0).unwrap();
    assert_eq!((mine.live, mine.live_unseen), (2 * MIB, MIB));
    for kind in [Kind::Device, Kind::Managed] {
        assert!(member.reserve_at_once_as(kind, 0, GIB).is_none());
        assert!(member.reserve_at_once_as(kind, 1, 1).is_none());
    }
    assert_eq!(member.cell(0).unwrap().pending, 0);
}

#[test]
fn without_a_limit_everything_is_booked() {
    let scene = Scene::new();
    let member = scene.try_join(&[gpu(0, Limit::Unlimited)]).unwrap().member;
    hold(&member, 1 << 50);
    let view = member.view(0).unwrap();
    assert_eq!(
        (view.limit, view.charged, view.available()),
        (Limit::Unlimited, 1 << 50, u64::MAX)
    );
}

#[test]
fn gpus_are_matched_by_key_and_added_while_there_is_room() {
    let scene = Scene::new();
    let limit = Limit::Bytes(GIB);
    let a = scene
        .try_join(&[gpu(0, limit), gpu(1, limit)])
        .unwrap()
        .member;
    // The other way round, and one more.
    let b = scene
        .try_join(&[gpu(2, limit), gpu(1, limit)])
        .unwrap()
        .member;
    let in_use = a.reserve(1, MIB).unwrap();
    assert_eq!(b.view(1).unwrap().others, MIB);
    assert_eq!(b.view(0).unwrap().charged, 0);
    assert_eq!(b.view(0).unwrap().key, gpu(2, limit).key);
    assert!(b.view(2).is_none());
    assert_eq!(
        b.reserve(2, 1).unwrap_err().reason,
        DenialReason::UnknownGpu
    );
    a.commit(in_use, MIB);

    let more: Vec<_> = (3..16).map(|n| gpu(n, limit)).collect();
    let c = scene.try_join(&more).unwrap().member;
    assert_eq!(scene.ledger().snapshot().gpus.len(), 16);
    let error = scene.try_join(&[gpu(16, limit)]).unwrap_err().to_string();
    assert!(error.contains("no room for GPU 0000:11:00.0"), "{error}");
    assert_eq!(c.view(4).unwrap().key, gpu(7, limit).key);

    for (list, said) in [
        (vec![], "none"),
        (vec![gpu(0, limit), gpu(0, limit)], "0000:01:00.0 twice"),
        ((0..65).map(|n| gpu(n, limit)).collect(), "65"),
    ] {
        let error = scene.try_join(&list).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn sixty_four_gpus_are_told_apart() {
    let scene = Scene::new();
    let gpus: Vec<_> = (0..64)
        .map(|n| {
            let mut gpu = gpu(0, Limit::Bytes((n + 1) * MIB));
            // Eight devices, eight partitions each: same bus address, other partition bits.
            gpu.key = GpuKey((n / 8 + 1) << 8 | (n % 8) << 28);
            gpu
        })
        .collect();
    let member = scene.try_join(&gpus).unwrap().member;
    for n in 0..64 {
        let bytes = (n as u64 + 1) * MIB;
        let reservation = member.reserve(n, bytes).unwrap();
        member.commit(reservation, bytes);
        assert!(member.reserve(n, 1).is_err());
    }
}

#[test]
fn the_stricter_limit_holds_for_the_joiner_and_is_told_once() {
    let scene = Scene::new();
    let (first, notices) = {
        let joined = scene.try_join(&[gpu(0, Limit::Bytes(4 * GIB))]).unwrap();
        (joined.member, joined.notices)
    };
    assert_eq!(notices, []);

    let joined = scene.try_join(&[gpu(0, Limit::Bytes(8 * GIB))]).unwrap();
    assert_eq!(joined.member.limit(0), Some(Limit::Bytes(4 * GIB)));
    let [notice] = &joined.notices[..] else {
        panic!("{:?}", joined.notices)
    };
    assert_eq!(
        notice.to_string(),
        "budget 'default' is in use with the limit 4.0 GiB on GPU 0000:01:00.0, this process \
         asks for 8.0 GiB: the stricter one, 4.0 GiB, holds for this process; for a limit of its \
         own use another budget (with hipflex run another --budget NAME, or none; else another \
         FH_BUDGET)"
    );

    let joined = scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).unwrap();
    assert_eq!(joined.member.limit(0), Some(Limit::Bytes(GIB)));
    let [Notice::StricterLimit(conflict)] = &joined.notices[..] else {
        panic!()
    };
    assert_eq!(
        (conflict.mine, conflict.ledger),
        (Limit::Bytes(GIB), Limit::Bytes(4 * GIB))
    );
    let text = joined.notices[0].to_string();
    assert!(
        text.contains("1.0 GiB, holds for this process") && !text.contains('\n'),
        "{text}"
    );
    hold(&first, 2 * GIB);
    let denial = joined.member.reserve(0, MIB).unwrap_err();
    assert_eq!((denial.limit, denial.available), (Limit::Bytes(GIB), 0));
    assert_eq!(first.limit(0), Some(Limit::Bytes(4 * GIB)));

    let unlimited = scene.try_join(&[gpu(0, Limit::Unlimited)]).unwrap();
    assert_eq!(unlimited.member.limit(0), Some(Limit::Bytes(4 * GIB)));
    assert_eq!(unlimited.notices.len(), 1);
    assert!(
        unlimited.notices[0]
            .to_string()
            .contains("asks for unlimited")
    );
}

#[test]
fn one_notice_names_all_gpus_with_the_same_conflict() {
    let scene = Scene::new();
    let list = |bytes| -> Vec<_> { (0..3).map(|n| gpu(n, Limit::Bytes(bytes))).collect() };
    let _first = scene.try_join(&list(GIB)).unwrap();
    let joined = scene.try_join(&list(2 * GIB)).unwrap();
    assert_eq!(joined.notices.len(), 1);
    let text = joined.notices[0].to_string();
    assert!(
        text.contains("GPU 0000:01:00.0, 0000:02:00.0, 0000:03:00.0, this"),
        "{text}"
    );
}

#[test]
fn a_changed_limit_applies_to_those_who_did_not_bring_a_stricter_one() {
    let scene = Scene::new();
    let equal = scene.join(4 * GIB);
    let stricter = scene.join(GIB);
    hold(&equal, 3 * GIB);
    let ledger = scene.ledger();
    let key = gpu(0, Limit::Unlimited).key;

    ledger.set_limit(key, Limit::Bytes(8 * GIB)).unwrap();
    assert_eq!(equal.limit(0), Some(Limit::Bytes(8 * GIB)));
    assert_eq!(stricter.limit(0), Some(Limit::Bytes(GIB)));
    // Below what is held: nothing is freed, nothing more is granted.
    ledger.set_limit(key, Limit::Bytes(2 * GIB)).unwrap();
    assert_eq!(equal.view(0).unwrap().available(), 0);
    assert!(equal.reserve(0, 1).is_err());
    assert_eq!(scene.charged(), 3 * GIB);
    ledger.set_limit(key, Limit::Unlimited).unwrap();
    hold(&equal, 100 * GIB);
    assert!(ledger.set_limit(GpuKey(77), Limit::Unlimited).is_err());
}

#[test]
fn who_brings_the_limit_that_a_budget_was_made_with_follows_its_changes() {
    let scene = Scene::new();
    let first = scene.join(4 * GIB);
    let ledger = scene.ledger();
    let key = gpu(0, Limit::Unlimited).key;
    for changed in [2 * GIB, 8 * GIB] {
        ledger.set_limit(key, Limit::Bytes(changed)).unwrap();
        let joined = scene.try_join(&[gpu(0, Limit::Bytes(4 * GIB))]).unwrap();
        assert_eq!(joined.notices, []);
        assert_eq!(joined.member.limit(0), Some(Limit::Bytes(changed)));
        // And what is changed later.
        ledger.set_limit(key, Limit::Bytes(3 * GIB)).unwrap();
        assert_eq!(joined.member.limit(0), Some(Limit::Bytes(3 * GIB)));
        assert_eq!(first.limit(0), Some(Limit::Bytes(3 * GIB)));
    }
    let other = scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).unwrap();
    assert_eq!(other.notices.len(), 1);
}

#[test]
fn managed_memory_is_charged_and_told_apart() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    hold(&member, 100 * MIB);
    let managed = member.reserve_as(Kind::Managed, 0, 50 * MIB).unwrap();
    assert_eq!(managed.kind(), Kind::Managed);
    member.commit(managed, 40 * MIB);
    let mine = member.view(0).unwrap().mine;
    assert_eq!((mine.live, mine.live_unseen), (140 * MIB, 40 * MIB));
    assert_eq!(mine.charged(), 140 * MIB);
    assert!(member.reserve_as(Kind::Managed, 0, GIB).is_err());
    member.release(0, 100 * MIB);
    let mine = member.view(0).unwrap().mine;
    assert_eq!((mine.live, mine.live_unseen), (40 * MIB, 40 * MIB));
    member.release_as(Kind::Managed, 0, 40 * MIB);
    let snapshot = scene.ledger().snapshot();
    let figures = snapshot.members[0].cells[0].figures;
    assert_eq!((figures.live, figures.live_unseen), (0, 0));
    assert_eq!((snapshot.anomalies, snapshot.members[0].frees), (0, 2));
    member.leave().unwrap();
    assert_eq!(scene.join(GIB).view(0).unwrap().mine.live_unseen, 0);
}

#[test]
fn a_ledger_without_a_live_member_takes_the_newcomers_limits() {
    let scene = Scene::new();
    let first = scene.join(4 * GIB);
    let old = scene.ledger();
    first.leave().unwrap();
    let joined = scene.try_join(&[gpu(3, Limit::Bytes(7 * GIB))]).unwrap();
    assert_eq!(joined.notices, []);
    assert_eq!(joined.member.limit(0), Some(Limit::Bytes(7 * GIB)));
    assert_eq!(scene.ledger().snapshot().gpus.len(), 1);
    assert!(!old.is_current());
    assert!(scene.ledger().is_current());
}

#[test]
fn a_slot_is_released_only_when_nothing_is_held() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    hold(&member, MIB);
    assert_eq!(member.leave(), Err(Stayed::InUse));
    let pending = member.reserve(0, MIB).unwrap();
    member.release(0, MIB);
    assert_eq!(member.leave(), Err(Stayed::InUse));
    member.cancel(pending);
    member.set_overhead(0, 5 * MIB);
    assert_eq!(member.leave(), Ok(()));
    assert_eq!(scene.ledger().snapshot().members.len(), 0);
    assert_eq!(scene.charged(), 0);

    // It is no member any more, and says so instead of booking in another's slot.
    let next = scene.join(GIB);
    assert_eq!(member.leave(), Err(Stayed::NotAMember));
    assert_eq!(
        member.reserve(0, MIB).unwrap_err().reason,
        DenialReason::NotAMember
    );
    assert!(member.view(0).is_none());
    member.set_overhead(0, MIB);
    member.forget_overhead(0);
    member.release(0, MIB);
    hold(&next, GIB);
    assert_eq!(scene.charged(), GIB);
}

#[test]
fn a_snapshot_shows_who_holds_what() {
    let scene = Scene::new();
    let mut who = identity();
    who.comm = b"py\x1b[31mthon3-with-a-long-name".to_vec();
    let member = Member::join(
        &scene.place(),
        &scene.budget(),
        &[gpu(0, Limit::Bytes(GIB)), gpu(1, Limit::Unlimited)],
        &who,
    )
    .unwrap()
    .member;
    hold(&member, 3 * MIB);
    let pending = member.reserve(0, 2 * MIB).unwrap();
    member.set_overhead(1, MIB);
    member.set_engine(2, HookEngine::Table);
    member.set_engine(3, HookEngine::Other(9));
    member.set_engine(hipflex_ledger::MAX_HOOKS, HookEngine::Gum);
    let denial = Denial {
        reason: DenialReason::OverLimit,
        requested: 6 * GIB,
        limit: Limit::Bytes(4 * GIB),
        mine: GIB,
        others: MIB,
        overhead: 2,
        available: 3 * GIB - MIB - 2,
    };
    let first = Denial {
        reason: DenialReason::TooLarge,
        requested: u64::MAX,
        ..denial
    };
    member.record_refusal(1, &first, "hipMalloc");
    let told = scene.ledger().snapshot().members[0].last_refusal.clone();
    assert_eq!(told.unwrap().reason, Some(DenialReason::TooLarge));
    member.record_refusal(1, &denial, "hipMallocPitch\n-and-a-name-that-is-too-long");
    member.release(0, MIB);

    let ledger = scene.ledger();
    assert!(ledger.writable());
    let snapshot = ledger.snapshot();
    assert_eq!(snapshot.budget, "default");
    assert_eq!(snapshot.path, scene.path());
    assert_eq!(snapshot.uid, nix::unistd::geteuid().as_raw());
    assert_eq!(
        (snapshot.slots, snapshot.shared, snapshot.anomalies),
        (1024, false, 0)
    );
    assert_eq!(snapshot.liveness, LivenessMode::Locks);
    assert!(snapshot.created.elapsed().unwrap().as_secs() < 60);
    assert_eq!(snapshot.gpus[0].charged, 4 * MIB);
    assert_eq!(snapshot.gpus[1].limit, Limit::Unlimited);
    let [seen] = &snapshot.members[..] else {
        panic!("{snapshot:?}")
    };
    assert_eq!((seen.slot, seen.generation, seen.alive), (0, 1, Alive::Yes));
    assert_eq!(
        (seen.pid, seen.pid_here),
        (std::process::id(), Some(std::process::id()))
    );
    assert_eq!(seen.comm, "py\u{fffd}[31mthon3-wit");
    assert_eq!(seen.library_version, "0.1.0");
    assert_eq!((seen.allocations, seen.frees, seen.refusals), (1, 1, 2));
    let engines = [
        HookEngine::Unknown,
        HookEngine::Unknown,
        HookEngine::Table,
        HookEngine::Other(9),
    ];
    assert_eq!(seen.engines, engines);
    let refusal = seen.last_refusal.as_ref().unwrap();
    assert_eq!(
        (refusal.gpu, refusal.size),
        (gpu(1, Limit::Unlimited).key, 6 * GIB)
    );
    assert_eq!(refusal.reason, Some(DenialReason::OverLimit));
    assert_eq!(
        (
            refusal.limit,
            refusal.mine,
            refusal.others,
            refusal.overhead
        ),
        (Limit::Bytes(4 * GIB), GIB, MIB, 2)
    );
    assert_eq!(refusal.available(), Some(denial.available));
    assert_eq!(refusal.api, "hipMallocPitch\u{fffd}-and-a-name-that-");
    let cell = seen.cells[0];
    assert_eq!(
        (cell.figures.live, cell.figures.pending),
        (2 * MIB, 2 * MIB)
    );
    assert_eq!(
        (cell.figures.peak, cell.limit),
        (3 * MIB, Limit::Bytes(GIB))
    );
    // Known where it was measured, also when there is none, and not known elsewhere.
    assert_eq!(seen.cells[1].figures.overhead, Some(MIB));
    assert_eq!(cell.figures.overhead, None);
    member.set_overhead(1, 0);
    let snapshot = ledger.snapshot();
    assert_eq!(snapshot.members[0].cells[1].figures.overhead, Some(0));
    member.cancel(pending);

    ledger.set_host_pid(0, 1, 4242).unwrap();
    assert_eq!(ledger.snapshot().members[0].host_pid, 4242);
    assert!(ledger.set_host_pid(0, 2, 1).is_err());
    assert!(ledger.set_host_pid(5000, 1, 1).is_err());
}

#[test]
fn leaving_while_other_threads_book_loses_nothing() {
    let scene = Scene::new();
    // Keeps the ledger, so that a byte that is lost in it stays to be seen.
    let keeper = scene.join(GIB);
    for _ in 0..200 {
        let member = scene.join(GIB);
        let begun = AtomicBool::new(false);
        let book = || {
            let mut count = 0;
            loop {
                match member.reserve(0, MIB) {
                    Ok(reservation) => {
                        member.commit(reservation, MIB);
                        member.set_overhead(0, count % 2);
                        member.release(0, MIB);
                        count += 1;
                        begun.store(true, Ordering::SeqCst);
                    }
                    Err(denial) => break denial.reason,
                }
            }
        };
        std::thread::scope(|scope| {
            let booking = scope.spawn(book);
            while !begun.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let started = std::time::Instant::now();
            while member.leave().is_err() {
                // A reservation that is stuck would let neither thread come to an end.
                if started.elapsed().as_secs() >= 10 {
                    eprintln!("after 10 s something is still held");
                    std::process::abort();
                }
            }
            assert_eq!(booking.join().unwrap(), DenialReason::NotAMember);
        });
        assert_eq!(keeper.view(0).unwrap().charged, 0);
        assert_eq!(scene.ledger().snapshot().anomalies, 0);
    }
}

#[test]
fn a_thread_that_goes_on_while_another_leaves_never_reaches_the_next_owners_slot() {
    let scene = Scene::new();
    // Keeps the ledger.
    let _keeper = scene.join(GIB);
    let denial = scene.join(GIB).reserve(0, 2 * GIB).unwrap_err();
    for round in 0..40 {
        let member = scene.join(GIB);
        let stop = AtomicBool::new(false);
        let go_on = |what: &(dyn Fn() + Sync)| {
            while !stop.load(Ordering::Relaxed) {
                what();
                // Some of the time outside, or there is no moment to leave in.
                (0..50).for_each(|_| std::hint::spin_loop());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| go_on(&|| member.set_overhead(0, MIB)));
            }
            scope.spawn(|| go_on(&|| member.record_refusal(0, &denial, "x")));
            scope.spawn(|| go_on(&|| member.set_engine(0, HookEngine::Gum)));
            scope.spawn(|| {
                go_on(&|| {
                    if let Ok(reservation) = member.reserve(0, MIB) {
                        member.commit(reservation, MIB);
                        member.release(0, MIB);
                    }
                });
            });
            let started = std::time::Instant::now();
            while member.leave() == Err(Stayed::InUse) {
                if started.elapsed().as_secs() >= 20 {
                    eprintln!("after 20 s somebody is still inside");
                    std::process::abort();
                }
                std::thread::yield_now();
            }
            let next = scene.join(GIB);
            std::thread::sleep(std::time::Duration::from_millis(2));
            stop.store(true, Ordering::Relaxed);
            let mine = next.view(0).unwrap().mine;
            assert_eq!(
                mine,
                hipflex_ledger::CellView::default(),
                "in round {round}"
            );
            let snapshot = scene.ledger().snapshot();
            let seen = &snapshot.members[1];
            assert_eq!((seen.slot, seen.refusals, seen.allocations), (1, 0, 0));
            assert_eq!(seen.engines, [], "in round {round}");
            next.leave().unwrap();
        });
        assert_eq!(scene.ledger().snapshot().anomalies, 0);
    }
}

#[test]
fn joining_again_and_again_opens_no_more_files() {
    let scene = Scene::new();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    scene.join(GIB).leave().unwrap();
    let before = count();
    for _ in 0..20 {
        scene.join(GIB).leave().unwrap();
    }
    assert_eq!(count(), before);
}
