//! What a request's headers say about where it goes. Does not know replicas and models.

use http::{HeaderMap, HeaderValue};

use crate::response_cache::CachePolicy;

/// The only replica that a client wants, by its name.
const REPLICA_HEADER: &str = "x-throng-replica";
/// Names a session, whose requests go to one of an alias's models.
const SESSION_HEADER: &str = "x-session-id";

/// Where a client wants its request to go.
#[derive(Debug)]
pub(crate) struct Destination {
    replica: Option<HeaderValue>,
    session: Option<HeaderValue>,
}

impl Destination {
    /// Reads the headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let field = |name| headers.get(name).cloned();
        Self { replica: field(REPLICA_HEADER), session: field(SESSION_HEADER) }
    }

    /// The name of the only replica that may answer.
    pub fn replica(&self) -> Option<&str> {
        self.replica.as_ref().map(|name| name.to_str().unwrap_or("?"))
    }

    /// The session that it belongs to.
    pub fn session(&self) -> Option<&str> {
        self.session.as_ref()?.to_str().ok()
    }

    /// Which kept answers may be used: none for a client that wants one replica's.
    pub fn cache_policy(&self, headers: &HeaderMap) -> CachePolicy {
        if self.replica.is_some() { CachePolicy::Bypass } else { CachePolicy::of(headers) }
    }
}
