//! How hooks are put in place below the exported symbols: what a user may wish for, and what a member tells.

use std::ffi::OsStr;

/// How a hook was put in place, below the exported symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HookEngine {
    /// Not told.
    #[default]
    Unknown,
    /// Only the exported symbol and look-ups by name lead to the hook.
    ExportOnly,
    /// A slot of the runtime's dispatch table.
    Table,
    /// An inline hook by `detour`.
    Detour,
    /// An inline hook by `frida-gum`.
    Gum,
    /// A number that this version does not know.
    Other(u8),
}

impl HookEngine {
    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown | Self::Other(_) => "unknown",
            Self::ExportOnly => "exports",
            Self::Table => "table",
            Self::Detour => "detour",
            Self::Gum => "gum",
        }
    }

    /// The number that stands for it in a ledger.
    pub fn code(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::ExportOnly => 1,
            Self::Table => 2,
            Self::Detour => 3,
            Self::Gum => 4,
            Self::Other(code) => code,
        }
    }

    /// The engine that a number stands for.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Unknown,
            1 => Self::ExportOnly,
            2 => Self::Table,
            3 => Self::Detour,
            4 => Self::Gum,
            other => Self::Other(other),
        }
    }
}

/// What a user wishes for, in `FH_HOOK_ENGINE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The dispatch table where there is one; what is left, and other runtimes, inline.
    #[default]
    Auto,
    /// The dispatch table alone.
    Table,
    /// Inline, by `detour`.
    Detour,
    /// Inline, by `frida-gum`.
    Gum,
    /// None: by the names of the functions only.
    None,
}

impl EngineChoice {
    /// What a value of the variable means; an empty one is as none.
    ///
    /// # Errors
    /// It is none of the known words. The text names them.
    pub fn parse(value: &OsStr) -> Result<Self, String> {
        let word = value.to_str().map(|word| word.trim().to_ascii_lowercase());
        match word.as_deref() {
            Some("auto" | "") => Ok(Self::Auto),
            Some("table") => Ok(Self::Table),
            Some("detour") => Ok(Self::Detour),
            Some("gum") => Ok(Self::Gum),
            Some("none") => Ok(Self::None),
            _ => Err(format!(
                "FH_HOOK_ENGINE={value:?} is none of \"auto\", \"table\", \"detour\", \"gum\", \"none\""
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_code_of_its_own() {
        for code in 0..=u8::MAX {
            assert_eq!(HookEngine::from_code(code).code(), code);
        }
    }

    #[test]
    fn a_word_that_is_no_engine_is_an_error_that_names_them() {
        for (word, choice) in [
            ("auto", EngineChoice::Auto),
            ("", EngineChoice::Auto),
            (" None ", EngineChoice::None),
        ] {
            assert_eq!(EngineChoice::parse(OsStr::new(word)), Ok(choice));
        }
        for bad in ["banana", "table,detour", "0"] {
            let error = EngineChoice::parse(OsStr::new(bad)).unwrap_err();
            assert!(
                error.contains(bad) && error.contains("\"detour\""),
                "{error}"
            );
        }
    }
}
