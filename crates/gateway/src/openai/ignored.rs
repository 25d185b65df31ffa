//! Parameters without effect, as the response header and the log name them. Does not know how requests
//! are read.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Parameters of a request that have no effect, known or not, as the response header `x-throng-ignored` names
/// them. Bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredParameters {
    names: Vec<String>,
    n_more: usize,
}

impl IgnoredParameters {
    const MAX_NAMES: usize = 16;
    const MAX_NAME_BYTES: usize = 64;

    /// Remembers a name once.
    pub fn add(&mut self, name: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '[' | ']');
        let name: String =
            name.chars().take(Self::MAX_NAME_BYTES).map(|c| if is_plain(c) { c } else { '?' }).collect();
        if self.names.contains(&name) {
            return;
        }
        if self.names.len() < Self::MAX_NAMES { self.names.push(name) } else { self.n_more += 1 }
    }

    /// Remembers what `other` does.
    pub fn extend(&mut self, other: &Self) {
        other.names.iter().for_each(|name| self.add(name));
        self.n_more += other.n_more;
    }

    /// The names: ASCII letters, digits and `_-.[]`, anything else as `?`; at most 16 of at most 64 bytes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The value of the header: ASCII, at most some 1,100 bytes; `None` when nothing was ignored.
    pub fn header_value(&self) -> Option<String> {
        if self.names.is_empty() {
            return None;
        }
        let list = self.names.join(", ");
        Some(if self.n_more == 0 { list } else { format!("{list}, +{} more", self.n_more) })
    }
}

/// How often the log names ignored parameters.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Names ignored parameters in the log, once a minute for all requests together.
#[derive(Debug, Default)]
pub(crate) struct IgnoredLog(Mutex<Since>);

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

    /// The line that is due at `now`, if one is.
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
