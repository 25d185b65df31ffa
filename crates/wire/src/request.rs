//! What a worker is asked for: token ids and numbers. Does not know text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::ResumedContinuation;
use throng_core::prompt_media::PromptMedia;
use throng_core::request::{Priority, SamplingParams, TenantId, TokenId};

use crate::Constraint;

/// A prompt to be continued: the first line of the body.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generate {
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Further separates cached prefixes within the tenant.
    pub cache_salt: Option<Arc<str>>,
    /// Priority among the tenant's requests.
    pub priority: Priority,
    /// The prompt.
    pub prompt: Arc<[TokenId]>,
    /// Parts of the prompt beside its tokens; absent: text only. Not sent to a worker whose
    /// [`Description`](crate::Description) does not say that it reads this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media: Option<Arc<PromptMedia>>,
    /// Choice of tokens, and the ends of continuations.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the outputs.
    pub constraint: Option<Constraint>,
    /// The adapter to apply to the model's weights, by its name.
    pub adapter: Option<String>,
    /// Number of continuations; not read for a resumed request.
    pub n: u32,
    /// The continuations to go on with; none for a new request.
    pub resumed: Vec<ResumedContinuation>,
}

/// A further line of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A continuation needs no more tokens.
    Abort {
        /// The executor.
        index: u32,
    },
    /// Message of a newer gateway: to be passed over.
    #[serde(other)]
    Unknown,
}
