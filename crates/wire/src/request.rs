//! Requests of a gateway to a worker: token ids and numbers. Does not know text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::ResumedContinuation;
use throng_core::prompt_media::PromptMedia;
use throng_core::request::{Priority, SamplingParams, TenantId, TokenId};

use crate::Constraint;

/// Request for continuations of a prompt: the first line of the body.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generate {
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Further separates cached prefixes within the tenant.
    pub cache_salt: Option<Arc<str>>,
    /// Priority among the tenant's requests.
    pub priority: Priority,
    /// Tokens of the prompt.
    pub prompt: Arc<[TokenId]>,
    /// Parts of the prompt beside its tokens; absent for text only. Sent only to workers whose
    /// [`Description`](crate::Description) permits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media: Option<Arc<PromptMedia>>,
    /// Parameters of sampling and of the ends of continuations.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the outputs.
    pub constraint: Option<Constraint>,
    /// Name of the adapter to apply to the model's weights.
    pub adapter: Option<String>,
    /// Number of continuations; ignored for a resumed request.
    pub n: u32,
    /// Continuations to resume; empty for a new request.
    pub resumed: Vec<ResumedContinuation>,
}

/// A later line of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A continuation needs no more tokens.
    Abort {
        /// Index of the continuation.
        index: u32,
    },
    /// A command of a newer gateway, which is ignored.
    #[serde(other)]
    Unknown,
}
