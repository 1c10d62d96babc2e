//! What a HIP runtime's library exports, and through which slot of its dispatch table each function goes.
//!
//! Lists of the real ones are kept in `tests/hip-standin/golden`: a stand-in is held to them, and the coverage of
//! the hooks is told by them. Read with `readelf`, and from the code of the exports.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

/// An exported function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its symbol version, such as `hip_4.2`.
    pub version: String,
    /// Its place in the dispatch table of ROCm 6 and later, in pointers behind the table's size; `None` for a
    /// function of another shape than a stub of that table.
    pub slot: Option<usize>,
}

impl fmt::Display for Export {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot.map_or("-".into(), |slot| slot.to_string());
        write!(out, "{} {} {slot}", self.name, self.version)
    }
}

/// Where the list of a release is kept.
pub fn list_of(release: &str) -> PathBuf {
    paths::workspace().join(format!("tests/hip-standin/golden/{release}.txt"))
}

/// The releases that there are lists of, oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn releases() -> Result<Vec<String>> {
    let folder = list_of("").parent().map(Path::to_path_buf);
    let folder = folder.context("no folder")?;
    let mut found = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let name = entry?.file_name().to_string_lossy().into_owned();
        found.extend(name.strip_suffix(".txt").map(str::to_string));
    }
    found.sort();
    Ok(found)
}

/// The list of a release, as it is kept.
///
/// # Errors
/// There is none, or it has a line that is not understood.
pub fn listed(release: &str) -> Result<Vec<Export>> {
    let path = list_of(release);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let [name, version, slot] = words[..] else {
                bail!("{}: {line:?}", path.display());
            };
            Ok(Export {
                name: name.into(),
                version: version.into(),
                slot: slot.parse().ok(),
            })
        })
        .collect()
}

/// The list of a release as a file.
pub fn as_text(release: &str, exports: &[Export]) -> String {
    let mut text = format!(
        "# The hip* functions that libamdhip64 of HIP {release} (Debian) exports: name, symbol version, slot in its dispatch\n\
         # table ('-': none, or a stub of another shape). Read from the library's dynamic symbols and its stubs' code.\n"
    );
    for export in exports {
        text.push_str(&format!("{export}\n"));
    }
    text
}

/// What a library exports whose name begins with `hip`, by name.
///
/// # Errors
/// It cannot be read, or `readelf` (of binutils) is missing.
pub fn of_library(library: &Path) -> Result<Vec<Export>> {
    let bytes = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let segments = segments(library)?;
    let mut found = Vec::new();
    for line in readelf(library, &["--dyn-syms", "--wide"])?.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, address, size, "FUNC", binding, _, section, symbol] = words[..] else {
            continue;
        };
        let Some((name, version)) = symbol.split_once('@') else {
            continue;
        };
        if binding == "LOCAL" || section == "UND" || !name.starts_with("hip") {
            continue;
        }
        let address = usize::from_str_radix(address, 16)?;
        let code = segments
            .iter()
            .find(|segment| (segment.at..segment.at + segment.bytes).contains(&address))
            .and_then(|segment| bytes.get(address - segment.at + segment.offset..))
            .and_then(|code| code.get(..number(size)?));
        found.push(Export {
            name: name.into(),
            version: version.trim_start_matches('@').into(),
            slot: code.and_then(slot_of_stub),
        });
    }
    ensure!(
        !found.is_empty(),
        "{} exports no HIP function",
        library.display()
    );
    found.sort();
    Ok(found)
}

/// A size as `readelf` writes it: large ones in hex.
fn number(word: &str) -> Option<usize> {
    match word.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// A part of a library that is loaded.
struct Segment {
    offset: usize,
    at: usize,
    bytes: usize,
}

fn segments(library: &Path) -> Result<Vec<Segment>> {
    let text = readelf(library, &["--segments", "--wide"])?;
    let loads = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let ["LOAD", offset, at, _, bytes, ..] = words[..] else {
            return None;
        };
        let hex = |word: &str| usize::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        Some(Segment {
            offset: hex(offset)?,
            at: hex(at)?,
            bytes: hex(bytes)?,
        })
    });
    Ok(loads.collect())
}

fn readelf(library: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("readelf")
        .args(arguments)
        .arg(library)
        .env("LC_ALL", "C")
        .output()
        .context("cannot run readelf: binutils is needed")?;
    ensure!(
        output.status.success(),
        "readelf {}: {}",
        library.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The slot of a stub: `call TABLE; ...; mov rax, [rax + OFFSET]; ...; jmp rax`, where the table begins with its
/// size and has one pointer for each function. Between them only saved arguments are fetched back.
fn slot_of_stub(code: &[u8]) -> Option<usize> {
    let call = code.iter().position(|byte| *byte == 0xe8)?;
    let behind = call.checked_add(5)?;
    // Nothing comes behind it.
    let between = code.strip_suffix(&[0xff, 0xe0])?.get(behind..)?;
    let offset = between.windows(7).find_map(|seven| match seven {
        [0x48, 0x8b, 0x80, a, b, c, d] => Some(u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        [0x48, 0x8b, 0x40, a, ..] => Some(usize::from(*a)),
        _ => None,
    })?;
    // The first word is the size.
    (offset >= 8 && offset % 8 == 0).then(|| offset / 8 - 1)
}
