//! apt with folders of its own: it downloads what another Debian suite offers, and leaves the
//! machine's own package state alone.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::machine;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A package as one suite offers it.
#[derive(Clone, Debug)]
pub(super) struct Package {
    /// Its name.
    pub(super) name: String,
    /// Its full Debian version.
    pub(super) version: String,
}

/// An apt that knows only the given suites and thinks that nothing is installed, so it fetches
/// every dependency too.
pub(super) struct Apt {
    state: PathBuf,
    suite: String,
}

impl Apt {
    /// Sets the folders up in `state`. The last of `suites` is preferred; the others fill in what
    /// it does not have.
    pub(super) fn new(state: &Path, suites: &[&str]) -> Result<Apt> {
        if !Path::new(KEYRING).exists() {
            machine::install(&["debian-archive-keyring"]).with_context(|| {
                format!("{KEYRING} is not there, and the runtimes come from Debian's packages")
            })?;
        }
        for dir in ["lists/partial", "cache/archives/partial", "empty"] {
            let dir = state.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let mirror = mirror()?;
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
            .collect();
        fs::write(state.join("sources.list"), sources)?;
        fs::write(state.join("status"), "")?;
        let suite = suites.last().copied().unwrap_or_default().to_string();
        Ok(Apt {
            state: state.to_path_buf(),
            suite,
        })
    }

    fn command(&self, program: &str) -> Command {
        let at = |option: &str, path: &str| -> [OsString; 2] {
            let mut value = OsString::from(format!("{option}="));
            value.push(self.state.join(path));
            ["-o".into(), value]
        };
        let mut command = Command::new(program);
        command
            .arg("-qq")
            .args(at("Dir::Etc::sourcelist", "sources.list"))
            .args(at("Dir::Etc::sourceparts", "empty"))
            .args(at("Dir::Etc::preferencesparts", "empty"))
            .args(at("Dir::State::lists", "lists"))
            .args(at("Dir::State::status", "status"))
            .args(at("Dir::Cache", "cache"))
            // apt would drop to a user that may not read the workspace.
            .args([
                "-o",
                "APT::Sandbox::User=root",
                "-o",
                "Acquire::Languages=none",
            ])
            .args(["-o", "Acquire::Retries=3", "-t", &self.suite])
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        command
    }

    /// Fetches the suites' package lists.
    pub(super) fn update(&self) -> Result<()> {
        run(
            self.command("apt-get").arg("update"),
            "fetch the package lists",
        )?;
        Ok(())
    }

    /// The package whose name is `prefix` and something that `rest` accepts. Of several, the one
    /// with the newest version.
    pub(super) fn newest_named(
        &self,
        prefix: &str,
        rest: impl Fn(&str) -> bool,
    ) -> Result<Option<Package>> {
        let names = run(
            self.command("apt-cache").args(["pkgnames", prefix]),
            "list the packages of the suite",
        )?;
        let mut candidates = Vec::new();
        for name in names.lines().map(str::trim) {
            if !name.strip_prefix(prefix).is_some_and(&rest) {
                continue;
            }
            let policy = run(
                self.command("apt-cache").args(["policy", name]),
                "look a package up",
            )?;
            let version = policy
                .lines()
                .find_map(|l| l.trim().strip_prefix("Candidate: "));
            if let Some(version) = version.filter(|v| *v != "(none)") {
                candidates.push(Package {
                    name: name.into(),
                    version: version.into(),
                });
            }
        }
        candidates.sort_by_key(|p| numbers(&p.version));
        Ok(candidates.pop())
    }

    /// Downloads the packages with all they depend on; the archives' paths.
    pub(super) fn download(&self, packages: &[Package]) -> Result<Vec<PathBuf>> {
        let names = packages.iter().map(|p| format!("{}={}", p.name, p.version));
        run(
            self.command("apt-get")
                .args([
                    "-y",
                    "--download-only",
                    "--no-install-recommends",
                    "install",
                ])
                .args(names),
            "download the packages",
        )?;
        let archives = self.state.join("cache/archives");
        let mut found = Vec::new();
        for entry in fs::read_dir(&archives)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "deb") {
                found.push(path);
            }
        }
        if found.is_empty() {
            bail!(
                "apt-get said that it downloaded the packages, but {} is empty",
                archives.display()
            );
        }
        Ok(found)
    }

    /// Removes lists and archives; they are larger than what was unpacked.
    pub(super) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.state)
            .with_context(|| format!("cannot remove {}", self.state.display()))
    }
}

/// Names another mirror of Debian, for a machine whose own apt has none.
const MIRROR: &str = "HIPFLEX_DEBIAN_MIRROR";

/// The mirror that the machine itself uses for Debian's packages.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR) {
        return Ok(mirror);
    }
    if let Some(mirror) = configured_mirror()? {
        return Ok(mirror);
    }
    // On a new machine apt knows its repositories only after it has looked at them once.
    if machine::is_root() {
        run(
            Command::new("apt-get").args(["-qq", "update"]),
            "fetch this machine's own package lists",
        )?;
        if let Some(mirror) = configured_mirror()? {
            return Ok(mirror);
        }
    }
    bail!(
        "apt's sources name no Debian mirror (`apt-get indextargets` lists them, after \
         `apt-get update`); {MIRROR}=URL names one"
    )
}

/// The first repository of apt's that says it is Debian's own.
fn configured_mirror() -> Result<Option<String>> {
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(CODENAME) $(REPO_URI)",
    ]);
    let targets = run(&mut command, "ask apt for this machine's mirror")?;
    Ok(targets.lines().find_map(debian_mirror))
}

/// The address in a line of origin, code name and address, if all of Debian is there. Security
/// updates are a repository of their own, without the suites that are wanted.
fn debian_mirror(target: &str) -> Option<String> {
    let mut words = target.split_whitespace();
    let (origin, codename, uri) = (words.next()?, words.next()?, words.next()?);
    (origin == "Debian" && !codename.contains("security")).then(|| uri.to_string())
}

/// The numbers in a version, to tell the newer of two: 5.10 is newer than 5.9.
fn numbers(version: &str) -> Vec<u64> {
    version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .collect()
}

fn run(command: &mut Command, what: &str) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot {what}: {:?} does not start", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "cannot {what}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{debian_mirror, numbers};

    #[test]
    fn versions_compare_by_their_numbers() {
        assert!(numbers("5.10.1-2") > numbers("5.9.9-9"));
        assert!(numbers("7.2.4-1~exp1") > numbers("6.4.3-4"));
    }

    #[test]
    fn only_debian_s_own_repository_is_a_mirror_of_it() {
        let mirror = |line| debian_mirror(line);
        assert_eq!(
            mirror("Debian bookworm m:/debian/"),
            Some("m:/debian/".into())
        );
        assert_eq!(mirror("Debian bookworm-security m:/debian-security/"), None);
        assert_eq!(mirror("Vendor bookworm m:/linux/debian/"), None);
        assert_eq!(mirror("Ubuntu noble m:/ubuntu/"), None);
        assert_eq!(mirror(""), None);
    }
}
