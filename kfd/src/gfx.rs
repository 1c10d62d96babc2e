//! The instruction set of a GPU, as the compiler's targets name it.

use std::fmt;

/// KFD's `gfx_target_version`: `major * 10000 + minor * 100 + stepping`.
///
/// It is displayed as the compiler names it, where minor and stepping are one hexadecimal digit
/// each: 90010 is `gfx90a`, 90402 is `gfx942`, 110000 is `gfx1100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GfxVersion(pub u32);

impl GfxVersion {
    /// The major version: 9 for CDNA, 10 and above for RDNA.
    pub fn major(self) -> u32 {
        self.0 / 10_000
    }

    /// Whether compute units come in pairs (work-group processors), as they do from GFX10 on.
    pub fn is_rdna(self) -> bool {
        self.major() >= 10
    }
}

impl fmt::Display for GfxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minor, stepping) = (self.0 / 100 % 100, self.0 % 100);
        write!(f, "gfx{}{minor:x}{stepping:x}", self.major())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_the_compiler_names_them() {
        for (version, name, rdna) in [
            (90_000, "gfx900", false),
            (90_010, "gfx90a", false),
            (90_402, "gfx942", false),
            (100_300, "gfx1030", true),
            (110_000, "gfx1100", true),
            (120_001, "gfx1201", true),
        ] {
            assert_eq!(GfxVersion(version).to_string(), name);
            assert_eq!(GfxVersion(version).is_rdna(), rdna);
        }
    }
}
