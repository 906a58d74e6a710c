//! [`Level`] and [`emit`]: what the host has to say, to standard error or to NCCL's own log.
//!
//! `RINGFENCE_LOG` sets the level (`error`, `warn`, `info`, `debug`, `trace`, `off`; `warn` by default). Nothing
//! on the decision path logs: faults are counted there and reported by whoever reads the counters.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// How much a message matters; the least important last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something asked for does not work.
    Error = 1,
    /// Something works otherwise than asked for.
    Warn = 2,
    /// A milestone: loaded, reloaded, refused.
    Info = 3,
    /// Steps of loading.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

impl Level {
    /// As `RINGFENCE_LOG` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }

    const ALL: [Level; 5] = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];

    /// The level of that name, in any case.
    pub fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name().eq_ignore_ascii_case(name.trim()))
    }
}

/// Receives each message that passes the level, without a line end.
pub type Sink = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// The level in force: 0 is off, [`UNREAD`] means that the environment was not consulted yet.
static LEVEL: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = u8::MAX;
const DEFAULT: u8 = Level::Warn as u8;
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Level that a value of `RINGFENCE_LOG` asks for; the default where it names none.
fn level_of(value: Option<&str>) -> u8 {
    match value {
        None => DEFAULT,
        Some(v) if v.trim().eq_ignore_ascii_case("off") => 0,
        Some(v) => Level::parse(v).map_or(DEFAULT, |l| l as u8),
    }
}

#[cold]
fn read_level() -> u8 {
    let level = level_of(std::env::var("RINGFENCE_LOG").ok().as_deref());
    LEVEL.store(level, Relaxed);
    level
}

/// Would a message of this level be written?
pub fn enabled(level: Level) -> bool {
    let now = match LEVEL.load(Relaxed) {
        UNREAD => read_level(),
        set => set,
    };
    level as u8 <= now
}

/// Sets the level from now on; `None` silences.
pub fn set_level(level: Option<Level>) {
    LEVEL.store(level.map_or(0, |l| l as u8), Relaxed);
}

/// Sends messages to `sink` from now on; `None` goes back to standard error.
pub fn set_sink(sink: Option<Sink>) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Writes a message. Formats nothing when the level is off. Use the macro [`log!`](crate::log!).
pub fn emit(level: Level, message: fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    // The sink is cloned so that it runs without the lock: it may itself log, or block in NCCL's logger.
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match sink {
        Some(sink) => sink(level, &message.to_string()),
        None => eprintln!("ringfence {}: {message}", level.name()),
    }
}

/// `log!(Warn, "map {name} is full")`: writes a message at a [`Level`](crate::log::Level).
#[macro_export]
macro_rules! log {
    ($level:ident, $($arg:tt)+) => {
        $crate::log::emit($crate::log::Level::$level, format_args!($($arg)+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn level_names() {
        for (text, want) in [
            (None, DEFAULT),
            (Some("off"), 0),
            (Some(" INFO "), Level::Info as u8),
            (Some("trace"), Level::Trace as u8),
            (Some("loud"), DEFAULT),
        ] {
            assert_eq!(level_of(text), want, "{text:?}");
        }
    }

    #[test]
    fn sink_gets_what_passes_the_level() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let copy = seen.clone();
        set_level(Some(Level::Info));
        set_sink(Some(Arc::new(move |level, text: &str| {
            copy.lock().unwrap().push((level, text.to_string()))
        })));
        crate::log!(Info, "marker {}", 7);
        crate::log!(Debug, "marker unseen");
        set_sink(None);
        let ours: Vec<_> =
            seen.lock().unwrap().iter().filter(|(_, t)| t.starts_with("marker")).cloned().collect();
        assert_eq!(ours, [(Level::Info, "marker 7".to_string())]);
    }
}
