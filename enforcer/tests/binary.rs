//! The library file itself: what it exports and what it needs.

mod common;

use std::process::Command;

fn readelf(arguments: &[&str]) -> String {
    let output = Command::new("readelf")
        .args(arguments)
        .arg(common::library())
        .output()
        .expect("readelf comes with the C compiler's binutils");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_exports_the_hooks_the_look_up_functions_and_its_version_only() {
    let table = readelf(&["--dyn-syms", "--wide"]);
    let mut exported: Vec<&str> = table
        .lines()
        .filter(|line| {
            [" GLOBAL ", " WEAK "]
                .iter()
                .any(|binding| line.contains(binding))
        })
        .filter(|line| !line.contains(" UND "))
        .filter_map(|line| line.split_whitespace().nth(7))
        .collect();
    exported.sort_unstable();
    // A row of the table begins with the function's name.
    let rows = include_str!("../src/hook_table.rs").lines();
    let names = rows.filter_map(|line| {
        let row = line
            .strip_prefix("    ")
            .filter(|row| row.starts_with("hip"))?;
        row.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    });
    let mut expected: Vec<&str> = names.collect();
    assert!(expected.len() > 27, "{expected:?}");
    expected.extend([
        "amdsmi_get_gpu_memory_total",
        "amdsmi_get_gpu_memory_usage",
        "amdsmi_get_gpu_vram_info",
        "amdsmi_get_gpu_vram_usage",
        "dlsym",
        "dlvsym",
        "hipflex_version",
        "rocprofiler_register_library_api_table",
        "rsmi_dev_memory_total_get",
        "rsmi_dev_memory_usage_get",
    ]);
    expected.sort_unstable();
    assert_eq!(exported, expected);
}

#[test]
fn it_needs_libc_only_and_is_never_unloaded() {
    let dynamic = readelf(&["--dynamic", "--wide"]);
    let needed: Vec<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let allowed = ["libc.so.6", "ld-linux-x86-64.so.2"];
    assert!(
        needed.iter().all(|library| allowed.contains(library)),
        "{needed:?}"
    );
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    // Late loading must find room in what the linker keeps for late thread-local storage.
    assert!(!dynamic.contains("STATIC_TLS"), "{dynamic}");
}

#[test]
fn it_has_one_constructor_and_one_destructor_of_its_own() {
    let sections = readelf(&["--sections", "--wide"]);
    let size = |name: &str| {
        let line = sections.lines().find(|line| line.contains(name))?;
        let columns: Vec<&str> = line.split(']').nth(1)?.split_whitespace().collect();
        u64::from_str_radix(columns.get(4)?, 16).ok()
    };
    // The compiler's frame_dummy, one of the standard library that stores argc and argv, and ours.
    assert_eq!(size(".init_array"), Some(24), "{sections}");
    // The compiler's __do_global_dtors_aux, and ours.
    assert_eq!(size(".fini_array"), Some(16), "{sections}");
    let thread_local = ["tdata", "tbss"]
        .iter()
        .filter_map(|name| size(name))
        .sum::<u64>();
    assert!(
        thread_local <= 512,
        "{thread_local} bytes of thread-local storage"
    );
}
