//! `FH_LOG_LEVEL`: how much is logged.
//!
//! `LEVEL` or `MODULE=LEVEL`, several separated by commas: `warn`, `info,hipflex::live=trace`. Levels: `off`,
//! `error`, `warn`, `info`, `debug`, `trace`, in any case. The longest module that an event lies in decides.

use tracing::Level;
use tracing::level_filters::LevelFilter;

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// For everything that no rule names.
    level: LevelFilter,
    rules: Vec<(String, LevelFilter)>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            level: LevelFilter::WARN,
            rules: Vec::new(),
        }
    }
}

impl Filter {
    /// Reads a filter; empty is the default. The error is the part that was not understood.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (module, name) = match part.split_once('=') {
                Some((module, name)) => (Some(module.trim()), name.trim()),
                None => (None, part),
            };
            let level = level(name).ok_or(part)?;
            match module {
                None => filter.level = level,
                Some("") => return Err(part.to_owned()),
                Some(module) => filter.rules.push((module.to_owned(), level)),
            }
        }
        Ok(filter)
    }

    /// Whether an event of this target and level is logged.
    pub(super) fn allows(&self, target: &str, level: Level) -> bool {
        let rule = self
            .rules
            .iter()
            .filter(|(module, _)| lies_in(target, module))
            .max_by_key(|(module, _)| module.len());
        level <= rule.map_or(self.level, |(_, level)| *level)
    }

    /// The most that any target logs.
    pub(super) fn highest(&self) -> LevelFilter {
        let rules = self.rules.iter().map(|(_, level)| *level);
        rules
            .max()
            .map_or(self.level, |level| level.max(self.level))
    }
}

fn level(name: &str) -> Option<LevelFilter> {
    [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ]
    .into_iter()
    .find_map(|(known, level)| known.eq_ignore_ascii_case(name).then_some(level))
}

fn lies_in(target: &str, module: &str) -> bool {
    target
        .strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_level_is_for_everything() {
        let filter = Filter::parse("Info").unwrap();
        assert!(filter.allows("hipflex::live", Level::INFO));
        assert!(!filter.allows("hipflex::live", Level::DEBUG));
        assert_eq!(Filter::parse(""), Ok(Filter::default()));
        assert!(Filter::default().allows("hipflex", Level::WARN));
        assert!(!Filter::default().allows("hipflex", Level::INFO));
        assert!(
            !Filter::parse("off")
                .unwrap()
                .allows("hipflex", Level::ERROR)
        );
    }

    #[test]
    fn the_longest_module_decides() {
        let filter = Filter::parse("error, hipflex::log=debug,hipflex::log::sink=off").unwrap();
        assert!(filter.allows("hipflex::log", Level::DEBUG));
        assert!(filter.allows("hipflex::log::filter", Level::DEBUG));
        assert!(!filter.allows("hipflex::log::sink", Level::ERROR));
        assert!(!filter.allows("hipflex::logging", Level::WARN));
        assert!(!filter.allows("hipflex", Level::WARN));
        assert_eq!(filter.highest(), LevelFilter::DEBUG);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, part) in [
            ("loud", "loud"),
            ("info,=debug", "=debug"),
            ("hipflex=", "hipflex="),
            ("a=b=c", "a=b=c"),
        ] {
            assert_eq!(Filter::parse(text), Err(part.to_owned()));
        }
    }
}
