//! The libraries that there are.

use std::fmt;
use std::path::PathBuf;

/// A build of the stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// As 5.7: plain exports that begin with `endbr64`, internal calls through the PLT.
    Five,
    /// As 5.2: the same without `endbr64`, bound lazily.
    FivePlain,
    /// As 6.4: the exports are stubs over a dispatch table.
    Six,
    /// The same, which also registers its table with rocprofiler-register if that is there.
    SixRegistering,
    /// As 7.2: the same, with a larger table and the rules of 7.
    Seven,
}

impl Build {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Five,
        Self::FivePlain,
        Self::Six,
        Self::SixRegistering,
        Self::Seven,
    ];

    /// The first part of its version: 5, 6 or 7.
    pub fn generation(self) -> u32 {
        self.release().0
    }

    /// The release whose functions it has, as far as the stand-in has them: `(5, 7)`.
    pub fn release(self) -> (u32, u32) {
        match self {
            Self::Five => (5, 7),
            Self::FivePlain => (5, 2),
            Self::Six | Self::SixRegistering => (6, 4),
            Self::Seven => (7, 2),
        }
    }

    /// Whether its exports are stubs over a dispatch table.
    pub fn has_table(self) -> bool {
        self.generation() >= 6
    }

    /// The directory it lies in, for `LD_LIBRARY_PATH`. There is nothing else to be loaded in it.
    pub fn directory(self) -> PathBuf {
        PathBuf::from(concat!(env!("OUT_DIR"), "/")).join(self.name())
    }

    /// Its name as a file and as a library: `libamdhip64.so.6`.
    pub fn soname(self) -> String {
        format!("libamdhip64.so.{}", self.generation())
    }

    /// The library.
    pub fn path(self) -> PathBuf {
        self.directory().join(self.soname())
    }

    /// A short name: `5`, `5-plain`, `6`, `6r`, `7`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Five => "5",
            Self::FivePlain => "5-plain",
            Self::Six => "6",
            Self::SixRegistering => "6r",
            Self::Seven => "7",
        }
    }

    /// The release whose symbol versions and dispatch slots it has.
    pub fn modelled_on(self) -> &'static str {
        match self {
            Self::Five => "5.7.1",
            Self::FivePlain => "5.2.3",
            Self::Six | Self::SixRegistering => "6.4.3",
            Self::Seven => "7.2.4",
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stand-in for rocprofiler-register (`librocprofiler-register.so.0`), to be loaded or preloaded before
/// [`Build::SixRegistering`]. It takes tables and says what it was given: `int standin_registrations(void)`, `void
/// *standin_registered(const char *name)`.
pub fn profiler_register() -> PathBuf {
    PathBuf::from(concat!(
        env!("OUT_DIR"),
        "/profiler/librocprofiler-register.so.0"
    ))
}
