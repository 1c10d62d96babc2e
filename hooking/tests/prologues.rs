//! Functions that begin with instructions of every kind: which are hooked and where, which are refused and why,
//! and that those which are hooked still do what they did.

mod common;

use common::{Library, calls, code, commit, hook, install, session, stage, write_code};
use hipflex_hooking::{EngineKind, Refusal, Session};

/// Where the jump is in each function that can be hooked.
const KEPT: [(&str, usize); 29] = [
    ("keep_push", 1),
    ("keep_push_with_prefix", 2),
    ("keep_push_small_number", 2),
    ("keep_push_large_number", 5),
    ("keep_push_of_memory", 6),
    ("keep_push_of_return_address", 3),
    ("keep_push_rax", 1),
    ("keep_sub", 4),
    ("keep_sub_large", 7),
    ("keep_xor", 2),
    ("keep_mov_number", 5),
    ("keep_mov_of_memory", 6),
    ("keep_lea", 7),
    ("keep_mov_of_thread", 9),
    ("keep_test", 2),
    ("keep_cmp_with_memory", 7),
    ("keep_realigned", 5),
    ("keep_nop", 1),
    ("keep_endbr_push", 5),
    ("keep_endbr_sub", 8),
    ("keep_endbr_xor", 6),
    ("keep_moves_memory", 1),
    ("keep_moves_branch", 1),
    ("keep_moves_call", 1),
    ("keep_moves_jump", 1),
    ("keep_pauses", 1),
    ("keep_recursion", 1),
    ("keep_over_pages", 1),
    ("keep_jump", 5),
];

/// What a refusal says, for each function that must be refused.
const REFUSED: [(&str, &str); 21] = [
    ("refuse_frame_pointer", "+0 (48 89 ed) can be neither"),
    ("refuse_argument", "+0 (89 ff) can be neither"),
    ("refuse_store", "can be neither"),
    ("refuse_pop", "+0 (58) can be neither"),
    ("refuse_add", "can be neither"),
    ("refuse_call", "can be neither"),
    ("refuse_branch", "can be neither"),
    ("refuse_jump_over_memory", "+4 (ff 25"),
    ("refuse_endbr_argument", "+4 (89 ff) can be neither"),
    ("refuse_return", "+0 (c3) can be neither"),
    ("refuse_endbr_return", "+4 (c3) can be neither"),
    ("refuse_short", "no room for a jump at +2"),
    ("refuse_invalid", "no room for a jump at +1"),
    ("refuse_loop_at_jump", "a branch"),
    ("refuse_loop_into_jump", "a branch"),
    ("refuse_loop_to_entry", "a branch"),
    ("refuse_pointer_into_jump", "a branch"),
    ("refuse_call_under_jump", "a call"),
    ("refuse_system_call_under_jump", "a call"),
    ("refuse_variadic", "variable number"),
    ("refuse_chain_of_jumps", "chain of jumps"),
];

/// Enough for branches to go both ways.
static ARGUMENTS: [u64; 3] = [0, 1, 5];

#[test]
fn hooked_functions_do_what_they_did_and_each_call_is_seen_once() {
    let library = Library::new();
    let mut session = session();
    let mut expected = Vec::new();
    for (index, (name, jump)) in KEPT.into_iter().enumerate() {
        let function = library.function(name);
        expected.push(ARGUMENTS.map(|n| function(n)));
        let staged = stage(&mut session, library.address(name), index)
            .unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(staged.jump - staged.entry, jump, "{name}");
        // SAFETY: the original has the function's signature.
        let original: common::Function = unsafe { core::mem::transmute(staged.original) };
        assert_eq!(
            ARGUMENTS.map(|n| original(n)),
            expected[index],
            "{name}, not committed"
        );
    }
    let before: Vec<_> = (0..KEPT.len()).map(calls).collect();
    commit(session).unwrap();
    for (index, (name, _)) in KEPT.into_iter().enumerate() {
        let function = library.function(name);
        assert_eq!(ARGUMENTS.map(|n| function(n)), expected[index], "{name}");
        // It calls itself as often as the argument says.
        let recursions = if name == "keep_recursion" { 1 + 5 } else { 0 };
        let seen = calls(index) - before[index];
        assert_eq!(seen, ARGUMENTS.len() as u64 + recursions, "{name}");
    }
}

#[test]
fn what_cannot_be_hooked_is_refused_with_the_reason_and_left_alone() {
    let library = Library::new();
    let mut session = session();
    for (name, reason) in REFUSED {
        let address = library.address(name);
        let before: [u8; 16] = code(address);
        let refusal = stage(&mut session, address, 0).expect_err(name).to_string();
        assert!(refusal.contains(reason), "{name}: {refusal}");
        assert_eq!(code(address), before, "{name}");
    }
    // The session goes on, and the refused ones do not come back with it.
    stage(&mut session, library.address("keep_push"), 0).unwrap();
    commit(session).unwrap();
    assert_eq!(code::<1>(library.address("keep_push") + 1), [0xe9]);
    for (name, _) in REFUSED {
        assert!(stage(&mut common::session(), library.address(name), 0).is_err());
    }
}

#[test]
fn every_function_of_the_library_is_in_a_table() {
    let source = include_str!("prologues.S");
    let named = |start: &str| {
        let names = source.lines().filter_map(|line| line.strip_prefix("FN "));
        names
            .map(|name| name.split_whitespace().next().unwrap_or_default())
            .filter(|name| name.starts_with(start))
            .count()
    };
    // Two have no FN: one on the edge of a page. And aliases have a test of their own.
    assert_eq!(named("keep_") + 1 - 1, KEPT.len());
    assert_eq!(named("refuse_"), REFUSED.len());
}

#[test]
fn code_is_hooked_once_whatever_its_names() {
    let library = Library::new();
    let mut session = session();
    stage(&mut session, library.address("keep_push"), 0).unwrap();
    for name in ["keep_push", "keep_alias"] {
        let refused = stage(&mut session, library.address(name), 1);
        assert_eq!(
            refused,
            Err(Refusal::Alias(library.address("keep_push"))),
            "{name}"
        );
    }
    commit(session).unwrap();
    // Nor in a later session.
    let again = stage(&mut common::session(), library.address("keep_alias"), 1);
    assert!(matches!(again, Err(Refusal::Differs { .. })), "{again:?}");
}

/// The hook of the next test: a plain function, which calls the original with other arguments.
type Many = extern "C" fn(
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
) -> u64;
static MANY: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

#[allow(clippy::too_many_arguments, reason = "that is what is tested")]
extern "C" fn adds_one_to_each(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    i: f64,
    j: f64,
    k: f64,
    l: f64,
    m: f64,
    n: f64,
    o: f64,
    p: f64,
) -> u64 {
    let original = MANY.get().copied().unwrap_or_default();
    // SAFETY: the original of the function that this one is the hook of.
    let original: Many = unsafe { core::mem::transmute(original) };
    original(
        a + 1,
        b + 1,
        c + 1,
        d + 1,
        e + 1,
        f + 1,
        g + 1,
        h + 1,
        i + 1.0,
        j,
        k,
        l,
        m,
        n,
        o,
        p + 1.0,
    ) * 2
}

#[test]
fn arguments_in_registers_and_on_the_stack_arrive() {
    let library = Library::new();
    // SAFETY: its signature, see `prologues.S`.
    let function: Many = unsafe { core::mem::transmute(library.address("takes_many")) };
    let call = |more: u64| {
        let float = more as f64;
        function(
            1 + more,
            20 + more,
            3 + more,
            40 + more,
            5 + more,
            60 + more,
            7 + more,
            80 + more,
            9.0 + float,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            16.0 + float,
        )
    };
    let expected = call(1) * 2;
    let mut session = session();
    let hook = adds_one_to_each as *const () as usize;
    // SAFETY: the library stays, the signatures are the same.
    let staged = unsafe { session.stage(library.address("takes_many"), hook) }.unwrap();
    MANY.set(staged.original).unwrap();
    commit(session).unwrap();
    assert_eq!(call(0), expected);
}

#[test]
fn breakpoints_on_kept_instructions_are_not_copied() {
    let library = Library::new();
    let function = library.function("keep_endbr_push");
    let address = library.address("keep_endbr_push");
    let expected = function(5);
    for at in [0, 4] {
        let library = library.copy();
        let address = library.address("keep_endbr_push");
        let byte: [u8; 1] = code(address + at);
        write_code(address + at, &[0xcc]);
        let staged = install(address, at).unwrap();
        // The breakpoint is where it was, and the original passes it by.
        assert_eq!(code(address + at), [0xcc]);
        // SAFETY: the original has the function's signature.
        let original: common::Function = unsafe { core::mem::transmute(staged.original) };
        assert_eq!(original(5), expected, "+{at}");
        write_code(address + at, &byte);
        assert_eq!(library.function("keep_endbr_push")(5), expected, "+{at}");
    }
    // Where the jump goes it is somebody else's change.
    write_code(address + 5, &[0xcc]);
    let refused = install(address, 0).unwrap_err();
    assert!(
        matches!(refused, Refusal::Differs { at, memory: 0xcc, .. } if at == address + 5),
        "{refused:?}"
    );
    assert_eq!(code(address + 5), [0xcc]);
}

#[test]
fn what_is_changed_between_stage_and_commit_is_noticed_and_nothing_is_live() {
    let library = Library::new();
    let (one, two) = (library.address("keep_push"), library.address("keep_sub"));
    let before: [[u8; 16]; 2] = [code(one), code(two)];
    let mut session = session();
    stage(&mut session, one, 0).unwrap();
    stage(&mut session, two, 1).unwrap();
    write_code(two + 5, &[0x90]);
    let refused = commit(session).unwrap_err();
    assert!(matches!(refused, Refusal::Differs { .. }), "{refused:?}");
    write_code(two + 5, &before[1][5..6]);
    assert_eq!([code(one), code(two)], before);
}

#[test]
fn a_session_that_is_dropped_leaves_no_trace_in_the_code() {
    let library = Library::new();
    let address = library.address("keep_push");
    let before: [u8; 16] = code(address);
    let mut session = session();
    stage(&mut session, address, 0).unwrap();
    drop(session);
    assert_eq!(code(address), before);
    install(address, 0).unwrap();
}

#[test]
fn what_is_no_code_of_a_file_is_refused() {
    let on_the_heap = Box::new([0x53_u8; 64]);
    let data = &raw const ARGUMENTS;
    let refused = |address| stage(&mut session(), address, 0).unwrap_err();
    for address in [0, 16, on_the_heap.as_ptr() as usize, data as usize] {
        assert_eq!(refused(address), Refusal::NotInFile(address));
    }
    // SAFETY: the number of a value, which is 0 or an address.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    assert_eq!(refused(vdso), Refusal::NotInFile(vdso));
}

#[test]
fn an_empty_session_commits() {
    commit(session()).unwrap();
}

#[test]
fn an_engine_that_is_not_built_in_is_refused() {
    for engine in [EngineKind::Detour, EngineKind::Gum] {
        let begun = Session::new(engine);
        assert_eq!(begun.is_ok(), engine.is_built_in());
        if let Err(refusal) = begun {
            assert_eq!(refusal.to_string(), "this build has no engine 'gum'");
        }
    }
    assert_ne!(hook(0), hook(1));
}
