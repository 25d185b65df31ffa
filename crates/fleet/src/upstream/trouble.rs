//! Current fault of an engine, for operators: shown at once, and logged when it is new and then once a
//! minute. Does not know the kinds of faults.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Interval between log lines about one kind of fault.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Latest fault of one engine.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    present: Option<(String, Instant)>,
    /// Time of the last log line, by kind of fault.
    logged: BTreeMap<&'static str, Instant>,
}

impl Trouble {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a fault of this kind should be logged now. If so, counts it as logged.
    pub fn is_due(&self, kind: &'static str) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        let is_due = state.logged.get(kind).is_none_or(|at| now - *at >= REPEAT_INTERVAL);
        if is_due {
            state.logged.insert(kind, now);
        }
        is_due
    }

    /// Records a fault.
    pub fn begin(&self, told: String) {
        let mut state = self.state();
        let since = state.present.take().map_or_else(Instant::now, |(_, since)| since);
        state.present = Some((told, since));
    }

    /// Records that there is no fault.
    pub fn end(&self) {
        self.state().present = None;
    }

    /// Current fault, and its start.
    pub fn present(&self) -> Option<(String, Instant)> {
        self.state().present.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_log_has_each_kind_once_a_minute() {
        let (trouble, mut n_lines) = (Trouble::default(), 0);
        for second in 0..180 {
            let kind = if second % 2 == 0 { "unreachable" } else { "failed" };
            n_lines += usize::from(trouble.is_due(kind));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(n_lines, 6);
        trouble.begin("a".to_owned());
        let since = trouble.present().expect("trouble").1;
        tokio::time::advance(Duration::from_secs(1)).await;
        trouble.begin("b".to_owned());
        assert_eq!(trouble.present(), Some(("b".to_owned(), since)));
        trouble.end();
        assert_eq!(trouble.present(), None);
    }
}
