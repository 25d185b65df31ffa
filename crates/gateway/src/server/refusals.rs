//! Log of refused requests: a few lines of each error code in a window, so that many refusals cannot flood
//! the log. Does not know the reasons of refusals.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use tokio::time::Instant;

/// Maximum number of lines of one code in one window.
const LINES_A_WINDOW: u32 = 5;
const WINDOW: Duration = Duration::from_secs(10);
/// Longest value of a header field in a line, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// Log of one server's refusals, with one small entry for each code.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    n_lines: u32,
    n_unlogged: u64,
}

/// Client of a request, and the names by which it addressed the server.
#[derive(Debug)]
pub(super) struct Sender {
    client: String,
    host: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Sender {
    /// Reads the sender of a request of `client` from its head. HTTP/2 has the host in the target.
    pub fn new(client: &str, parts: &Parts) -> Self {
        let authority = || HeaderValue::from_str(parts.uri.authority()?.as_str()).ok();
        let host = parts.headers.get(header::HOST).cloned().or_else(authority);
        Self { client: client.to_owned(), host, origin: parts.headers.get(header::ORIGIN).cloned() }
    }
}

fn shown(value: Option<&HeaderValue>) -> Option<String> {
    Some(String::from_utf8_lossy(value?.as_bytes()).chars().take(MAX_VALUE_CHARS).collect())
}

impl RefusalLog {
    /// Logs an answer with this status and code, if its code has a line left. Refusals by key, host or
    /// limit are warnings, since the operator can change them.
    pub fn note(&self, status: StatusCode, code: &'static str, request: &str, path: &str, sender: &Sender) {
        let Some(n_unlogged) = self.admit(code, Instant::now()) else { return };
        let (host, origin) = (shown(sender.host.as_ref()), shown(sender.origin.as_ref()));
        let client = &sender.client;
        let is_operators = is_operators(status, code);
        let (status, code) = (status.as_u16(), code);
        if is_operators {
            tracing::warn!(request, path, status, code, client, host, origin, n_unlogged, "refused");
        } else {
            tracing::info!(request, path, status, code, client, n_unlogged, "refused");
        }
    }

    /// Whether a refusal at `now` may have a line, and the number of its code's refusals without one since
    /// the last line.
    fn admit(&self, code: &'static str, now: Instant) -> Option<u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows.entry(code).or_insert(Window { began: now, n_lines: 0, n_unlogged: 0 });
        if now - window.began >= WINDOW {
            (window.began, window.n_lines) = (now, 0);
        }
        if window.n_lines == LINES_A_WINDOW {
            window.n_unlogged += 1;
            return None;
        }
        window.n_lines += 1;
        Some(std::mem::take(&mut window.n_unlogged))
    }
}

/// Whether the reason of a refusal is the operator's settings or the server's state, and not the request's
/// content.
fn is_operators(status: StatusCode, code: &'static str) -> bool {
    let statuses = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::URI_TOO_LONG,
        StatusCode::MISDIRECTED_REQUEST,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    ];
    statuses.contains(&status) || status.is_server_error() || code == "bad_host"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_has_few_lines_and_hides_no_other_kind() {
        let (log, begun) = (RefusalLog::default(), Instant::now());
        let n_logged = |code, at| (0..1000).filter(|_| log.admit(code, at).is_some()).count();
        assert_eq!(n_logged("invalid_api_key", begun), LINES_A_WINDOW as usize);
        assert_eq!(n_logged("overloaded", begun + WINDOW / 2), LINES_A_WINDOW as usize);
        let unlogged = 1000 - u64::from(LINES_A_WINDOW);
        assert_eq!(log.admit("invalid_api_key", begun + WINDOW), Some(unlogged));
        assert_eq!(log.admit("invalid_api_key", begun + WINDOW), Some(0));
    }
}
