//! Finding the program to start, and telling when a preloaded library will not get into it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid, getuid};

use crate::environment::Environment;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::run::elf;

/// Where programs are looked for when `PATH` is not set (the C library's default).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// A script's interpreter may be a script; the kernel stops at this depth too.
const DEEPEST_SCRIPT: usize = 5;

/// The file that the name stands for: as execvp(3) finds it.
pub(crate) fn find(name: &OsStr, environment: &Environment) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return check(&path).map(|()| path);
    }
    let fail = |exit, problem: String| {
        Err(Failure {
            exit,
            problem,
            remedy: String::new(),
        })
    };
    let shown = name.display();
    if name.is_empty() {
        return fail(Exit::NotFound, String::from("the program's name is empty"));
    }
    match search(name, environment) {
        Ok(path) => Ok(path),
        Err(Some(path)) => {
            let problem = format!(
                "cannot execute {}: it has no execute permission",
                path.display()
            );
            fail(Exit::NotExecutable, problem)
        }
        Err(None) => Err(Failure {
            exit: Exit::NotFound,
            problem: format!("there is no program {shown} in PATH"),
            remedy: format!("for a file in this directory write ./{shown}"),
        }),
    }
}

/// The first executable of that name in `PATH`; else one that is there but not executable.
fn search(name: &OsStr, environment: &Environment) -> Result<PathBuf, Option<PathBuf>> {
    let path = environment.get("PATH").unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut unusable = None;
    for directory in path.as_bytes().split(|byte| *byte == b':') {
        // An empty entry is the current directory.
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let candidate = Path::new(OsStr::from_bytes(directory)).join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(failure) if failure.exit == Exit::NotExecutable && !candidate.is_dir() => {
                unusable.get_or_insert(candidate);
            }
            Err(_) => {}
        }
    }
    Err(unusable)
}

fn check(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let failure = |exit, problem: String, remedy: String| {
        Err(Failure {
            exit,
            problem,
            remedy,
        })
    };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
            let problem = format!("there is no program {shown}");
            return failure(Exit::NotFound, problem, String::new());
        }
        Err(error) => {
            let problem = format!("cannot execute {shown}: {error}");
            return failure(Exit::NotExecutable, problem, String::new());
        }
    };
    if metadata.is_dir() {
        let problem = format!("cannot execute {shown}: it is a directory");
        return failure(Exit::NotExecutable, problem, String::new());
    }
    if !metadata.is_file() || access(path, AccessFlags::X_OK).is_err() {
        let problem = format!("cannot execute {shown}: it has no execute permission");
        let remedy = format!("chmod +x {shown}, or start it by its interpreter");
        return failure(Exit::NotExecutable, problem, remedy);
    }
    Ok(())
}

/// Why a preloaded library will not get into this program, or `None` if nothing speaks against it.
///
/// A script is judged by its interpreter. What the program itself starts later is not looked at.
pub(crate) fn preload_obstacle(program: &Path, environment: &Environment) -> Option<String> {
    let mut current = program.to_owned();
    for _ in 0..DEEPEST_SCRIPT {
        match interpreter(&current, environment) {
            Some(next) => current = next,
            None => break,
        }
    }
    let reason = obstacle(&current)?;
    let shown = current.display();
    Some(if current == program {
        format!("{shown} {reason}")
    } else {
        format!("{shown}, which runs {}, {reason}", program.display())
    })
}

fn obstacle(program: &Path) -> Option<&'static str> {
    let metadata = fs::metadata(program).ok()?;
    if gains_privileges()
        && let Some(privilege) = privilege(program, &metadata)
    {
        return Some(privilege);
    }
    let elf = elf::read(program).ok()??;
    if !elf.is_64_bit || elf.machine != elf::EM_X86_64 {
        return Some("is not an x86-64 program: libhipflex.so cannot be loaded into it");
    }
    match elf.interpreter {
        // The dynamic linker started as a program preloads into what it loads.
        None if is_dynamic_linker(program) => None,
        None => Some("is statically linked: nothing can be preloaded into it"),
        Some(linker) if linker.as_bytes().windows(7).any(|part| part == b"ld-musl") => {
            Some("is linked against musl: libhipflex.so needs glibc and cannot be loaded into it")
        }
        Some(_) => None,
    }
}

/// The privilege that the program gets with its start: the kernel then sets AT_SECURE, and the
/// dynamic linker ignores paths in `LD_PRELOAD`.
fn privilege(program: &Path, metadata: &fs::Metadata) -> Option<&'static str> {
    // Without the group's right to execute, S_ISGID is a mark of mandatory locking.
    const SET_GROUP_ID: u32 = libc::S_ISGID | libc::S_IXGRP;
    let mode = metadata.mode();
    if mode & libc::S_ISUID != 0 && metadata.uid() != geteuid().as_raw() {
        return Some("is set-user-ID: the dynamic linker preloads nothing into such programs");
    }
    if mode & SET_GROUP_ID == SET_GROUP_ID && metadata.gid() != getegid().as_raw() {
        return Some("is set-group-ID: the dynamic linker preloads nothing into such programs");
    }
    if !getuid().is_root() && has_capabilities(program) {
        return Some(
            "has file capabilities: the dynamic linker preloads nothing into such programs",
        );
    }
    None
}

/// Whether programs get their privileges at all; many containers are started so that none does.
fn gains_privileges() -> bool {
    // SAFETY: with this option, prctl reads nothing but its own arguments and writes nothing.
    let none_are_given = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    none_are_given != 1
}

/// Whether this is `ld-linux-x86-64.so.2` or `ld.so`, by its name.
fn is_dynamic_linker(program: &Path) -> bool {
    let name = program.file_name().map_or(&b""[..], OsStrExt::as_bytes);
    name.starts_with(b"ld-linux") || name.starts_with(b"ld.so")
}

fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: both names are C strings that outlive the call; with size 0 nothing is written, and
    // the attribute's length is returned, or -1 when there is no such attribute.
    let length = unsafe {
        libc::getxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        )
    };
    length > 0
}

/// The program that a script's first line names; with `env`, the program that env starts.
fn interpreter(script: &Path, environment: &Environment) -> Option<PathBuf> {
    let mut start = [0; 256];
    let length = elf::read_up_to(&File::open(script).ok()?, &mut start).ok()?;
    let line = start[..length]
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| OsString::from_vec(word.to_vec()));
    let interpreter = PathBuf::from(words.next()?);
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter);
    }
    // `env python3`, `env -S python3 -u`, `env VAR=1 python3`
    let program = words.find(|word| {
        let bytes = word.as_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    })?;
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    search(&program, environment).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    fn file(directory: &TempDir, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn path(directories: &[&TempDir]) -> Environment {
        let list: Vec<_> = directories
            .iter()
            .map(|d| d.path().to_str().unwrap())
            .collect();
        Environment::from([("PATH", list.join(":").as_str())])
    }

    #[test]
    fn the_first_executable_in_path_is_taken() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        file(&first, "app", b"", 0o644);
        fs::create_dir(first.path().join("dir")).unwrap();
        let app = file(&second, "app", b"", 0o755);
        let environment = path(&[&first, &second]);
        assert_eq!(find(OsStr::new("app"), &environment).unwrap(), app);

        let missing = find(OsStr::new("nope"), &environment).unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        assert!(
            missing.to_string().contains("no program nope in PATH"),
            "{missing}"
        );
        assert_eq!(
            find(OsStr::new("dir"), &environment).unwrap_err().exit,
            Exit::NotFound
        );
        assert_eq!(
            find(OsStr::new(""), &environment).unwrap_err().exit,
            Exit::NotFound
        );

        let refused = find(OsStr::new("app"), &path(&[&first])).unwrap_err();
        assert_eq!(refused.exit, Exit::NotExecutable);
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let ask = |path: &Path| find(path.as_os_str(), &environment).map_err(|error| error.exit);
        let app = file(&directory, "app", b"", 0o755);
        assert_eq!(ask(&app), Ok(app.clone()));
        assert_eq!(
            ask(&file(&directory, "data", b"", 0o644)),
            Err(Exit::NotExecutable)
        );
        assert_eq!(ask(directory.path()), Err(Exit::NotExecutable));
        assert_eq!(ask(&directory.path().join("gone")), Err(Exit::NotFound));
        assert_eq!(ask(&app.join("below-a-file")), Err(Exit::NotFound));
    }

    fn own_program() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()
    }

    /// This test program with another dynamic linker, or none.
    fn relinked(change: impl Fn(&mut Vec<u8>, usize)) -> Vec<u8> {
        let mut bytes = own_program();
        let name = b"/lib64/ld-linux-x86-64.so.2\0";
        let at = bytes
            .windows(name.len())
            .position(|part| part == name)
            .unwrap();
        change(&mut bytes, at);
        bytes
    }

    #[test]
    fn an_ordinary_program_has_no_obstacle() {
        assert_eq!(
            preload_obstacle(Path::new("/proc/self/exe"), &Environment::default()),
            None
        );
    }

    #[test]
    fn programs_that_take_no_preload_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let judge = |name: &str, content: &[u8], mode: u32| {
            let path = file(&directory, name, content, mode);
            preload_obstacle(&path, &environment).unwrap_or_default()
        };
        let musl = relinked(|bytes, at| {
            let name = b"/lib/ld-musl-x86_64.so.1\0\0\0\0";
            bytes[at..at + name.len()].copy_from_slice(name);
        });
        assert!(judge("musl", &musl, 0o755).contains("linked against musl"));

        // A static program is one without PT_INTERP: turn that header into PT_NULL.
        let mut fixed = own_program();
        let headers = u64::from_le_bytes(fixed[32..40].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes([fixed[56], fixed[57]]));
        for header in (0..count).map(|index| headers + index * 56) {
            if fixed[header..header + 4] == [3, 0, 0, 0] {
                fixed[header] = 0;
            }
        }
        assert!(judge("static", &fixed, 0o755).contains("statically linked"));
        assert_eq!(judge("ld-linux-x86-64.so.2", &fixed, 0o755), "");

        let mut arm = own_program();
        arm[18] = 183;
        assert!(judge("arm", &arm, 0o755).contains("not an x86-64 program"));
    }

    #[test]
    fn set_user_id_matters_only_for_another_user() {
        let directory = tempfile::tempdir().unwrap();
        let program = file(&directory, "app", &own_program(), 0o4755);
        // It belongs to the user who runs this test: the kernel then does not set AT_SECURE.
        assert_eq!(preload_obstacle(&program, &Environment::default()), None);
        if geteuid().is_root() {
            std::os::unix::fs::chown(&program, Some(12345), None).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
            let obstacle = preload_obstacle(&program, &Environment::default()).unwrap();
            assert!(obstacle.contains("set-user-ID"), "{obstacle}");
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let mut arm = own_program();
        arm[18] = 183;
        let interpreter = file(&directory, "python9", &arm, 0o755);
        let environment = path(&[&directory]);
        for line in [
            format!("#!{}\n", interpreter.display()),
            format!("#! {} -u\nprint()\n", interpreter.display()),
            String::from("#!/usr/bin/env python9\n"),
            String::from("#!/usr/bin/env -S A=1 python9 -u\n"),
        ] {
            let script = file(&directory, "script", line.as_bytes(), 0o755);
            let obstacle = preload_obstacle(&script, &environment).unwrap();
            assert!(
                obstacle.contains("python9, which runs "),
                "{line}: {obstacle}"
            );
        }
        for line in [
            "#!",
            "#!\n",
            "#!/usr/bin/env\n",
            "#!/no/such/interpreter\n",
            "echo hi\n",
        ] {
            let script = file(&directory, "script", line.as_bytes(), 0o755);
            assert_eq!(preload_obstacle(&script, &environment), None, "{line}");
        }
        let endless = file(&directory, "endless", b"", 0o755);
        fs::write(&endless, format!("#!{}\n", endless.display())).unwrap();
        assert_eq!(preload_obstacle(&endless, &environment), None);
    }
}
