//! Finding libhipflex.so, and making sure that the dynamic linker will take it.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::environment::{Environment, LIB};
use crate::failure::Failure;
use crate::run::elf;

/// The library's file name.
pub(crate) const NAME: &str = "libhipflex.so";
/// Where it may be, seen from the directory of this program: beside it (a build directory, an
/// unpacked archive), or in the library directory of the prefix that both were installed to.
const PLACES: [&str; 3] = [".", "../lib", "../lib64"];
/// What our library puts in front of the HIP runtime and the dynamic linker: a library without these
/// is another one, and would limit nothing.
const EXPORTS: [&str; 3] = ["hipMalloc", "hipFree", "dlsym"];

/// The absolute path of the library to preload.
///
/// A library that was named is the only one tried: falling back to another would surprise.
pub(crate) fn find(
    flag: Option<&Path>,
    environment: &Environment,
    program_directory: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let named = match (flag, environment.get(LIB)) {
        (Some(path), _) => Some((path, "--lib")),
        (None, Some(path)) => Some((Path::new(path), LIB)),
        (None, None) => None,
    };
    let path = match named {
        Some((path, origin)) => {
            check_presence(path, origin)?;
            path.to_owned()
        }
        None => beside(program_directory)?,
    };
    let path = absolute(&path)?;
    check_name(&path)?;
    check_content(&path)?;
    Ok(path)
}

/// Whether the library that `origin` names is there, as far as this user can see.
fn check_presence(path: &Path, origin: &str) -> Result<(), Failure> {
    let shown = path.display();
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => format!("the library {shown} (from {origin}) is not a file"),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                format!("there is no library {shown} (from {origin})")
            }
            _ => format!("cannot read the library {shown} (from {origin}): {error}"),
        },
    };
    Err(Failure::refused(
        problem,
        format!("{origin} must name the file {NAME}"),
    ))
}

fn beside(program_directory: Option<&Path>) -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = program_directory
        .map(|directory| {
            PLACES
                .map(|place| directory.join(place).join(NAME))
                .to_vec()
        })
        .unwrap_or_default();
    candidates
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .ok_or_else(|| {
            let tried: Vec<String> = candidates
                .iter()
                .map(|path| clean(path).display().to_string())
                .collect();
            Failure::refused(
                format!("cannot find {NAME}: tried {}", tried.join(", ")),
                format!("name it with --lib PATH or {LIB}"),
            )
        })
}

/// The path as it will be preloaded; the program may change its directory, so it must be absolute.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map(|path| clean(&path))
        .map_err(|error| {
            Failure::refused(
                format!("cannot make the path {} absolute: {error}", path.display()),
                "name the library by its absolute path",
            )
        })
}

/// The path without `dir/..`, where no symbolic link makes that another place.
fn clean(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// `LD_PRELOAD` is a list separated by spaces or colons, and `$` starts a token of the linker.
fn check_name(path: &Path) -> Result<(), Failure> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        return Err(Failure::refused(
            format!(
                "the path {} cannot be preloaded: it contains a space, a colon or a dollar sign",
                path.display()
            ),
            "move or link the library to a path without those",
        ));
    }
    Ok(())
}

fn check_content(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let remedy = format!("name the right {NAME} with --lib PATH, or build or install it again");
    let unreadable =
        |error| Failure::refused(format!("cannot read the library {shown}: {error}"), &remedy);
    let problem = match elf::read(path).map_err(unreadable)? {
        None => String::from("is not an ELF file"),
        Some(elf) if !elf.is_64_bit || elf.machine != elf::EM_X86_64 => {
            String::from("is not for x86-64")
        }
        Some(elf) if elf.kind != elf::ET_DYN => String::from("is not a shared object"),
        Some(elf) if elf.is_truncated => String::from("is cut short"),
        Some(elf) if !elf.is_dynamic => String::from("is not a shared object"),
        Some(_) => match elf::missing_exports(path, &EXPORTS).map_err(unreadable)? {
            none if none.is_empty() => return Ok(()),
            missing => format!("is not hipflex's: it has no {}", missing.join(", no ")),
        },
    };
    Err(Failure::refused(
        format!("the library {shown} {problem}"),
        remedy,
    ))
}

/// Whether an entry of `LD_PRELOAD` is a libhipflex.so, ours or another.
pub(crate) fn is_hipflex(entry: &OsStr, ours: &Path) -> bool {
    let entry = Path::new(entry);
    let same_file = || Some(entry.canonicalize().ok()? == ours.canonicalize().ok()?);
    entry.file_name() == Some(OsStr::new(NAME)) || same_file().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::OnceLock;
    use tempfile::TempDir;

    /// A shared object that has these functions and nothing else.
    fn linked(functions: &[&str]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let (source, library) = (directory.path().join("x.c"), directory.path().join("x.so"));
        let text = functions
            .iter()
            .map(|name| format!("void {name}(void) {{}}\n"));
        fs::write(&source, text.collect::<String>()).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-nostdlib", "-fno-builtin", "-o"]);
        let status = cc.arg(&library).arg(&source).status().unwrap();
        assert!(status.success(), "cc: {status}");
        fs::read(library).unwrap()
    }

    /// What passes for libhipflex.so.
    fn library() -> &'static [u8] {
        static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
        LIBRARY.get_or_init(|| linked(&EXPORTS))
    }

    /// A directory `bin` beside others, each with a libhipflex.so.
    fn tree(places: &[&str]) -> TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("bin")).unwrap();
        for place in places {
            let directory = tree.path().join(place);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(NAME), library()).unwrap();
        }
        tree
    }

    fn find_in(tree: &TempDir) -> Result<PathBuf, Failure> {
        find(
            None,
            &Environment::default(),
            Some(&tree.path().join("bin")),
        )
    }

    #[test]
    fn it_is_found_beside_the_program_and_then_in_lib() {
        for (places, expected) in [
            (&["bin", "lib"][..], "bin"),
            (&["lib"], "lib"),
            (&["lib64"], "lib64"),
        ] {
            let tree = tree(places);
            let expected = tree
                .path()
                .canonicalize()
                .unwrap()
                .join(expected)
                .join(NAME);
            assert_eq!(find_in(&tree).unwrap(), expected);
        }
    }

    #[test]
    fn when_it_is_nowhere_the_places_are_told() {
        let tree = tree(&["lib"]);
        fs::remove_file(tree.path().join("lib").join(NAME)).unwrap();
        let message = find_in(&tree).unwrap_err().to_string();
        for part in [
            "bin/libhipflex.so",
            "lib/libhipflex.so",
            "--lib PATH",
            "FH_LIB",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!message.contains("bin/../lib/"), "{message}");
    }

    #[test]
    fn flag_comes_before_variable_and_neither_falls_back() {
        let tree = tree(&["bin", "lib", "other"]);
        let (bin, lib) = (tree.path().join("bin"), tree.path().join("lib").join(NAME));
        let other = tree.path().join("other").join(NAME);
        let set = Environment::from([(LIB, lib.to_str().unwrap())]);
        let canonical = |path: &Path| path.canonicalize().unwrap();
        assert_eq!(find(None, &set, Some(&bin)).unwrap(), canonical(&lib));
        assert_eq!(
            find(Some(&other), &set, Some(&bin)).unwrap(),
            canonical(&other)
        );

        let message = find(Some(Path::new("/no/such.so")), &set, Some(&bin))
            .unwrap_err()
            .to_string();
        assert!(message.contains("/no/such.so (from --lib)"), "{message}");
        let set = Environment::from([(LIB, "/no/such.so")]);
        let message = find(None, &set, Some(&bin)).unwrap_err().to_string();
        assert!(message.contains("/no/such.so (from FH_LIB)"), "{message}");
        let message = find(Some(&bin), &set, None).unwrap_err().to_string();
        assert!(message.contains("(from --lib) is not a file"), "{message}");
    }

    #[test]
    fn files_that_cannot_be_preloaded_are_refused_by_what_is_wrong() {
        let tree = tree(&["bin"]);
        let library = tree.path().join("bin").join(NAME);
        let whole = fs::read(&library).unwrap();
        let mut other_machine = whole.clone();
        other_machine[18] = 183;
        let mut object_file = whole.clone();
        object_file[16] = 1;
        for (content, expected) in [
            (&b""[..], "is not an ELF file"),
            (b"#!/bin/sh\n", "is not an ELF file"),
            (&other_machine, "is not for x86-64"),
            (&object_file, "is not a shared object"),
            (&whole[..whole.len() / 3], "is cut short"),
            (
                &linked(&["hipMalloc"]),
                "is not hipflex's: it has no hipFree, no dlsym;",
            ),
        ] {
            fs::write(&library, content).unwrap();
            let message = find_in(&tree).unwrap_err().to_string();
            assert!(
                message.contains(expected) && message.contains("--lib PATH"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_path_that_the_linker_would_split_is_refused() {
        for name in ["with space", "with:colon", "$ORIGIN"] {
            let tree = tree(&[name]);
            let path = tree.path().join(name).join(NAME);
            let message = find(Some(&path), &Environment::default(), None)
                .unwrap_err()
                .to_string();
            assert!(message.contains("cannot be preloaded"), "{message}");
        }
    }
}
