//! Where `/sys` and `/dev` are, and how a file below them is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::ReadError;

/// sysfs files are at most one page; anything longer is not the file we took it for.
const LONGEST_FILE: u64 = 64 * 1024;

/// The directory that holds `sys` and `dev`: `/`, or a tree made for a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    prefix: PathBuf,
}

impl Root {
    /// The machine this process runs on.
    pub fn system() -> Self {
        Self {
            prefix: PathBuf::from("/"),
        }
    }

    /// A tree with `sys` and `dev` directories below `prefix`.
    pub fn at(prefix: impl Into<PathBuf>) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// The path of `below`, which has no leading slash: `sys/class/kfd`.
    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.prefix.join(below)
    }

    /// The character device that HIP opens, `/dev/kfd`.
    pub fn kfd_device(&self) -> PathBuf {
        self.path("dev/kfd")
    }

    /// The DRM render node of this minor number, `/dev/dri/renderD128`.
    pub fn render_node(&self, minor: u32) -> PathBuf {
        self.path(format!("dev/dri/renderD{minor}"))
    }
}

/// The text of a sysfs file, without the white space around it.
pub(crate) fn read_text(path: &Path) -> Result<String, ReadError> {
    read_text_raw(path).map_err(|source| ReadError::Io {
        path: path.to_owned(),
        source,
    })
}

/// As [`read_text`], for callers that must tell one I/O error from another.
pub(crate) fn read_text_raw(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LONGEST_FILE)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The text of a short sysfs file, with the error of the system for callers that tell one from another.
///
/// It is read in one go: sysfs gives an attribute as a whole, and a second read could get the rest of
/// another value.
pub(crate) fn read_value(path: &Path) -> io::Result<String> {
    /// A number has 20 digits at most. What fills this is none.
    const LONGEST_VALUE: usize = 64;
    let mut bytes = [0; LONGEST_VALUE];
    let mut file = File::open(path)?;
    let count = loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    let text = String::from_utf8_lossy(bytes.get(..count).unwrap_or_default());
    Ok(text.trim().to_owned())
}

/// The only number in a sysfs file.
pub(crate) fn read_number(path: &Path) -> Result<u64, ReadError> {
    let text = read_value(path).map_err(|source| ReadError::Io {
        path: path.to_owned(),
        source,
    })?;
    parse_number(&text).ok_or_else(|| ReadError::NotANumber {
        path: path.to_owned(),
        what: String::from("the file"),
        text,
    })
}

/// A decimal number as the driver prints it: digits only (`str::parse` alone would take a `+`).
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
