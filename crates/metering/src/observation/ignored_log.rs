//! The log lines that name parameters without effect.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use throng_api::IgnoredParameters;

/// Interval of log lines about ignored parameters.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Names ignored parameters in the log, once a minute for all requests together.
#[derive(Debug, Default)]
pub struct IgnoredLog(Mutex<Since>);

/// Requests since the last line.
#[derive(Debug, Default)]
struct Since {
    said_at: Option<Instant>,
    names: IgnoredParameters,
    n_requests: u64,
}

impl IgnoredLog {
    /// Notes a request with ignored parameters.
    pub fn note(&self, ignored: &IgnoredParameters) {
        if let Some((n_requests, names)) = self.due(ignored, Instant::now()) {
            tracing::info!(n_requests, names, "requests had parameters without effect, which were ignored");
        }
    }

    /// Returns the line that is due at `now`, if one is.
    fn due(&self, ignored: &IgnoredParameters, now: Instant) -> Option<(u64, String)> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.names.extend(ignored);
        since.n_requests += 1;
        if since.said_at.is_some_and(|said_at| now - said_at < LOG_INTERVAL) {
            return None;
        }
        let Since { names, n_requests, .. } =
            std::mem::replace(&mut *since, Since { said_at: Some(now), ..Since::default() });
        Some((n_requests, names.header_value().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_was_ignored_once_a_minute() {
        let log = IgnoredLog::default();
        let ignored = |name: &str| {
            let mut ignored = IgnoredParameters::default();
            ignored.add(name);
            ignored
        };
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        assert_eq!(log.due(&ignored("a"), at(0)), Some((1, "a".to_owned())));
        assert_eq!(log.due(&ignored("b"), at(1)), None);
        assert_eq!(log.due(&ignored("a"), at(59)), None);
        assert_eq!(log.due(&ignored("c"), at(60)), Some((3, "b, a, c".to_owned())));
        assert_eq!(log.due(&ignored("c"), at(61)), None);
    }
}
