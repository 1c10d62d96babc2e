//! The log: what happened inside the library, for those who look for a fault.
//!
//! A small subscriber for the `tracing` macros. One line is one write to a file that is opened for it (in
//! append mode) and closed again: programs close and reuse descriptors that they do not know, and forked
//! children would share one. Nothing is opened before there is something to log; at the default level that
//! is only what should not happen.
//!
//! * `FH_ENABLE_LOG`: `off`, `0`, `false` or `no` for no log at all;
//! * `FH_LOG_PATH`: `stderr`, a file, or a directory (then `hipflex.log.UID` in it); default `/tmp/hipflex`;
//! * `FH_LOG_LEVEL`: see [`filter`]; default `warn`.

mod filter;
mod sink;

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

use crate::environment;
use crate::line::Line;
use crate::settings::says_no;
use crate::stderr::say;
use filter::Filter;
use sink::Sink;

/// Starts the log as the variables say. Later calls in the same process do nothing.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    static TOLD: AtomicBool = AtomicBool::new(false);
    if says_no("FH_ENABLE_LOG", &TOLD) {
        return;
    }
    let level = environment::var("FH_LOG_LEVEL").unwrap_or_default();
    let filter = Filter::parse(&level.to_string_lossy()).unwrap_or_else(|part| {
        say!(
            "FH_LOG_LEVEL: {part:?} is not understood; logging at \"warn\". Write error, warn, info, debug, \
             trace or off, alone or as MODULE=LEVEL, separated by commas"
        );
        Filter::default()
    });
    if filter.highest() == LevelFilter::OFF {
        return;
    }
    let sink = Sink::new(environment::var("FH_LOG_PATH").as_deref());
    // Fails only if there is a subscriber already, which is then ours.
    let _ = tracing::subscriber::set_global_default(Log { filter, sink });
}

struct Log {
    filter: Filter,
    sink: Sink,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.allows(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.highest())
    }

    fn event(&self, event: &Event<'_>) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let text = format_args!(
            "{}.{:03} {:5} [{}] {}:{}",
            now.as_secs(),
            now.subsec_millis(),
            event.metadata().level(),
            std::process::id(),
            event.metadata().target(),
            Fields(event),
        );
        Line::write(text, &mut |bytes| self.sink.write(bytes));
    }

    // The library has no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The message and the fields of an event: ` message name=value ...`.
struct Fields<'a>(&'a Event<'a>);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Writer<'a, 'b>(&'a mut fmt::Formatter<'b>, fmt::Result);
        impl Visit for Writer<'_, '_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                let Self(f, result) = self;
                *result = result.and_then(|()| match field.name() {
                    "message" => write!(f, " {value:?}"),
                    name => write!(f, " {name}={value:?}"),
                });
            }
        }
        let mut writer = Writer(f, Ok(()));
        self.0.record(&mut writer);
        writer.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn log_to(path: &std::path::Path, level: &str) -> Log {
        Log {
            filter: Filter::parse(level).unwrap(),
            sink: Sink::new(Some(path.as_os_str())),
        }
    }

    #[test]
    fn an_event_is_one_line_with_its_fields() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        tracing::subscriber::with_default(log_to(&file, "info"), || {
            tracing::warn!(bytes = 5, "two\nlines");
            tracing::debug!("not this one");
        });
        let text = fs::read_to_string(&file).unwrap();
        let rest = text.split_once(" WARN  ").expect(&text).1;
        let me = std::process::id();
        assert_eq!(
            rest,
            format!("[{me}] hipflex::log::tests: two lines bytes=5\n")
        );
    }

    #[test]
    fn nothing_is_opened_before_there_is_something_to_log() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        tracing::subscriber::with_default(log_to(&file, "warn"), || {
            tracing::info!("below the level");
        });
        assert!(!file.exists());
    }
}
