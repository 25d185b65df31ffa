//! Continuations that go on from output which another replica generated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::request::TokenId;

/// A continuation with the output so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumedContinuation {
    /// Index of the continuation within the request; also a part of the random numbers' key.
    pub index: u32,
    /// The output tokens so far, possibly none. They count as output for penalties, `min_tokens`,
    /// `max_tokens`, stop tokens and positions, as if this replica had generated them; events report only
    /// later tokens. If they end the continuation already, only its end is reported.
    pub output: Arc<[TokenId]>,
}
