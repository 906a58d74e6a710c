//! [`Planner`]: from events in the policy directory to actions, as a pure function of events and time, so that
//! every order of events can be tested without a file system.
//!
//! Events come in bursts (a file is created, written, closed, renamed; Kubernetes swaps a link and removes the old
//! version), so a reload waits until the directory was quiet for [`QUIET`], but at most [`AT_MOST`]. Time is given as the
//! span since any fixed start.

use std::time::Duration;

/// Silence that ends a burst of events.
pub(crate) const QUIET: Duration = Duration::from_millis(30);
/// Longest wait when events keep coming.
pub(crate) const AT_MOST: Duration = Duration::from_millis(500);
/// Time between tries to watch a directory that is not there.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
/// Time between two looks at what tells nobody: faults counted on the decision path, and a link in the path that leads
/// elsewhere now.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something that a policy set is made of may have changed, or events were lost.
    Changed,
    /// The watched directory was moved, deleted or unmounted, or the path leads to another one.
    Gone,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Watch the directory again; then report with [`Planner::watching`].
    Watch,
    /// Read the set and install it if it differs.
    Reload,
    /// Look at what tells nobody.
    Tick,
}

/// State between events.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    watching: bool,
    /// When to try watching next; only while not watching.
    retry_at: Duration,
    /// First and last event of the current burst.
    burst: Option<(Duration, Duration)>,
    tick_at: Duration,
}

impl Planner {
    /// Nothing is watched yet; the first action is to watch.
    pub(crate) fn new(now: Duration) -> Planner {
        Planner { watching: false, retry_at: now, burst: None, tick_at: now + TICK }
    }

    /// Takes note of an event.
    pub(crate) fn event(&mut self, now: Duration, event: Event) {
        match event {
            Event::Changed => {
                let first = self.burst.map_or(now, |(first, _)| first);
                self.burst = Some((first, now));
            }
            Event::Gone => {
                self.watching = false;
                self.retry_at = now;
            }
        }
    }

    /// Takes note of the outcome of [`Action::Watch`]. A fresh watch leads to a reload: what happened before it
    /// was set left no event.
    pub(crate) fn watching(&mut self, now: Duration, ok: bool) {
        self.watching = ok;
        if ok {
            self.event(now, Event::Changed);
        } else {
            self.retry_at = now + RETRY;
        }
    }

    /// The next action that is due, if any. Ask until there is none.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Action> {
        if !self.watching && self.retry_at <= now {
            self.retry_at = now + RETRY;
            return Some(Action::Watch);
        }
        if self.reload_at().is_some_and(|at| at <= now) {
            self.burst = None;
            return Some(Action::Reload);
        }
        if self.tick_at <= now {
            self.tick_at = now + TICK;
            return Some(Action::Tick);
        }
        None
    }

    /// How long nothing is due, if no event comes.
    pub(crate) fn sleep(&self, now: Duration) -> Duration {
        let retry = (!self.watching).then_some(self.retry_at);
        let next = [retry, self.reload_at(), Some(self.tick_at)].into_iter().flatten().min();
        next.unwrap_or(self.tick_at).saturating_sub(now)
    }

    fn reload_at(&self) -> Option<Duration> {
        self.burst.map(|(first, last)| (last + QUIET).min(first + AT_MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn watching() -> Planner {
        let mut p = Planner::new(ms(0));
        assert_eq!(p.due(ms(0)), Some(Action::Watch));
        p.watching(ms(0), true);
        assert_eq!(p.due(ms(30)), Some(Action::Reload));
        p
    }

    #[test]
    fn a_burst_is_one_reload_after_silence() {
        let mut p = watching();
        for t in [100, 110, 125] {
            p.event(ms(t), Event::Changed);
            assert_eq!(p.due(ms(t)), None);
        }
        assert_eq!(p.sleep(ms(125)), QUIET);
        assert_eq!(p.due(ms(154)), None);
        assert_eq!(p.due(ms(155)), Some(Action::Reload));
        assert_eq!(p.due(ms(155)), None);
    }

    #[test]
    fn endless_events_cannot_put_it_off() {
        let mut p = watching();
        let mut reloads = Vec::new();
        for t in (100..1200).step_by(10) {
            p.event(ms(t), Event::Changed);
            if p.due(ms(t)) == Some(Action::Reload) {
                reloads.push(t);
            }
        }
        assert_eq!(reloads, [600, 1110]);
    }

    #[test]
    fn a_directory_that_went_away_is_watched_again_and_then_read() {
        let mut p = watching();
        p.event(ms(100), Event::Gone);
        assert_eq!(p.due(ms(100)), Some(Action::Watch));
        p.watching(ms(100), false);
        assert_eq!(p.due(ms(100)), None);
        assert_eq!(p.sleep(ms(100)), RETRY);
        assert_eq!(p.due(ms(600)), Some(Action::Watch));
        p.watching(ms(600), true);
        assert_eq!(p.due(ms(630)), Some(Action::Reload));
    }

    #[test]
    fn a_change_before_it_went_away_is_not_forgotten() {
        let mut p = watching();
        p.event(ms(100), Event::Changed);
        p.event(ms(101), Event::Gone);
        assert_eq!(p.due(ms(101)), Some(Action::Watch));
        p.watching(ms(101), false);
        assert_eq!(p.due(ms(130)), Some(Action::Reload), "the reason it cannot be read gets reported");
    }

    #[test]
    fn ticks_come_once_a_second_and_never_starve_a_reload() {
        let mut p = watching();
        assert_eq!(p.sleep(ms(30)), ms(970));
        p.event(ms(960), Event::Changed);
        assert_eq!(p.due(ms(1000)), Some(Action::Reload));
        assert_eq!(p.due(ms(1000)), Some(Action::Tick));
        assert_eq!(p.due(ms(1000)), None);
        assert_eq!(p.sleep(ms(1000)), TICK);
    }
}
