//! What a worker is asked for: token ids and numbers. Does not know text.

use serde::{Deserialize, Serialize};

use crate::{Constraint, Sampling};

/// A prompt to be continued: the first line of the body.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generate {
    /// Who asks.
    pub tenant: String,
    /// Further separates cached prefixes within the tenant.
    pub cache_salt: Option<String>,
    /// Which of the tenant's requests goes first.
    pub priority: i32,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen and when a continuation ends.
    pub sampling: Sampling,
    /// What the outputs are held to.
    pub constraint: Option<Constraint>,
    /// The adapter to apply to the model's weights, by its name.
    pub adapter: Option<String>,
    /// How many continuations; not read for a resumed request.
    pub n: u32,
    /// The continuations to go on with; none for a new request.
    pub resumed: Vec<Resumed>,
}

/// A continuation of which some output exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Its index within the request.
    pub index: u32,
    /// The output so far.
    pub output: Vec<u32>,
}

/// A further line of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A continuation needs no more tokens.
    Abort {
        /// Which one.
        index: u32,
    },
    /// What a newer gateway says: to be passed over.
    #[serde(other)]
    Unknown,
}
