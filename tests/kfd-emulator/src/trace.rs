//! What happened in a node: one entry for each ioctl.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Entries that are kept; older ones make room.
pub const CAPACITY: usize = 1 << 16;
/// Bytes that the kept entries take, about.
pub const CAPACITY_BYTES: usize = 48 << 20;
/// Longest name in bytes: a mark's text is cut there.
pub const LONGEST_NAME: usize = 4096;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When: nanoseconds of CLOCK_MONOTONIC, the clock of eBPF and of most test harnesses.
    pub time_ns: u64,
    /// The process, as the emulator's PID namespace numbers it; 0 for none.
    pub pid: u32,
    /// The thread; 0 for none.
    pub tid: u32,
    /// `kfd`, `renderD128`, ..., `queue` for what a GPU did, `mark` for [`crate::Control::mark`].
    pub device: String,
    /// The ioctl's name without prefix, such as `ALLOC_MEMORY_OF_GPU`.
    pub name: String,
    /// The command word as the caller passed it; 0 for what is no ioctl.
    pub command: u32,
    /// What the arguments were and what came back, by name. Addresses, handles and flags are
    /// hexadecimal text, sizes and counts are numbers.
    pub args: Map<String, Value>,
    /// 0, or the negative errno.
    pub result: i32,
}

/// Now, for [`Entry::time_ns`].
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |t| {
        (t.tv_sec() as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(t.tv_nsec() as u64)
    })
}

/// The latest entries, and optionally a file that gets each of them as a line of JSON.
#[derive(Debug, Default)]
pub struct Trace {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Entry>,
    /// Bytes that they take.
    bytes: usize,
    /// Entries that made room.
    dropped: u64,
    file: Option<File>,
}

/// A copy of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// The entries, oldest first.
    pub entries: Vec<Entry>,
    /// How many older ones are no longer there.
    pub dropped: u64,
}

impl Trace {
    /// A trace that also writes to a file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let file = Some(File::create(path)?);
        Ok(Self {
            inner: Mutex::new(Inner {
                file,
                ..Inner::default()
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry.
    pub fn add(&self, mut entry: Entry) {
        cut(&mut entry.name);
        let mut inner = self.lock();
        if let Some(file) = &mut inner.file {
            let line = serde_json::to_string(&entry).map(|text| text + "\n");
            let written = line
                .map_err(io::Error::from)
                .and_then(|l| file.write_all(l.as_bytes()));
            if let Err(error) = written {
                eprintln!("kfd-emulator: the trace file gets no more entries: {error}");
                inner.file = None;
            }
        }
        inner.bytes += weight(&entry);
        inner.entries.push_back(entry);
        while inner.entries.len() > CAPACITY || inner.bytes > CAPACITY_BYTES {
            let Some(oldest) = inner.entries.pop_front() else {
                break;
            };
            inner.bytes = inner.bytes.saturating_sub(weight(&oldest));
            inner.dropped += 1;
        }
    }

    /// A copy of what is there; with `clear`, it is then gone from here.
    pub fn dump(&self, clear: bool) -> Dump {
        let mut inner = self.lock();
        if clear {
            let dropped = std::mem::take(&mut inner.dropped);
            inner.bytes = 0;
            Dump {
                entries: std::mem::take(&mut inner.entries).into(),
                dropped,
            }
        } else {
            Dump {
                entries: inner.entries.iter().cloned().collect(),
                dropped: inner.dropped,
            }
        }
    }
}

/// Cuts a name that is too long, between characters.
fn cut(name: &mut String) {
    if name.len() > LONGEST_NAME {
        let end = (0..=LONGEST_NAME)
            .rev()
            .find(|&at| name.is_char_boundary(at));
        name.truncate(end.unwrap_or(0));
        name.shrink_to_fit();
    }
}

/// Bytes that an entry takes in memory, about.
fn weight(entry: &Entry) -> usize {
    /// What a map needs for a key, over its text.
    const KEY: usize = 48;
    let args = entry.args.iter();
    let args: usize = args
        .map(|(name, value)| KEY + name.len() + value_weight(value))
        .sum();
    size_of::<Entry>() + entry.name.len() + entry.device.len() + args
}

fn value_weight(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(value_weight).sum(),
            Value::Object(map) => map.iter().map(|(k, v)| k.len() + value_weight(v)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tid: u32) -> Entry {
        Entry {
            time_ns: now_ns(),
            pid: 1,
            tid,
            device: "kfd".into(),
            name: "SVM".into(),
            command: 0xc018_4b20,
            args: Map::from_iter([("size".to_owned(), Value::from(4096))]),
            result: -22,
        }
    }

    #[test]
    fn it_keeps_the_latest() {
        let trace = Trace::default();
        for tid in 0..CAPACITY as u32 + 3 {
            trace.add(entry(tid));
        }
        let dump = trace.dump(true);
        assert_eq!((dump.entries.len(), dump.dropped), (CAPACITY, 3));
        assert_eq!(dump.entries[0].tid, 3);
        assert_eq!(trace.dump(false), Dump::default());
    }

    #[test]
    fn it_is_bounded_in_bytes() {
        let trace = Trace::default();
        let long = "é".repeat(LONGEST_NAME);
        let count = 2 * CAPACITY_BYTES / LONGEST_NAME;
        for _ in 0..count {
            trace.add(Entry {
                name: long.clone(),
                ..entry(1)
            });
        }
        let dump = trace.dump(true);
        let kept = dump.entries.len();
        assert_eq!(kept + dump.dropped as usize, count);
        assert!(kept * LONGEST_NAME <= CAPACITY_BYTES && kept * LONGEST_NAME * 2 > CAPACITY_BYTES);
        assert_eq!(dump.entries[0].name.len(), LONGEST_NAME);
        trace.add(entry(2));
        assert_eq!(trace.dump(false).entries.len(), 1, "it starts anew");
    }

    #[test]
    fn the_file_has_a_line_for_each() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("trace");
        let trace = Trace::to_file(&path).unwrap();
        trace.add(entry(1));
        trace.add(entry(2));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Entry> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines, trace.dump(false).entries);
    }
}
