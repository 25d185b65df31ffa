//! What a replica is asked for: token ids and numbers, plain enough to be sent to another process. Does not
//! know text or HTTP.

use std::sync::Arc;

use throng_core::fleet::replica::ResumedContinuation;
use throng_core::prompt_media::PromptMedia;
use throng_core::request::{Adapter, Priority, SamplingParams, TenantId, TokenId};

use crate::constraint::OutputForm;

/// A prompt to be continued. Cloning it copies no prompt.
#[derive(Debug, Clone)]
pub struct ReplicaRequest {
    /// The tenant, for fair shares and to keep cached prefixes apart.
    pub tenant: TenantId,
    /// Further separates cached prefixes within the tenant.
    pub cache_salt: Option<Arc<str>>,
    /// Order among the tenant's requests.
    pub priority: Priority,
    /// The prompt, at least one token.
    pub prompt: Arc<[TokenId]>,
    /// Parts of the prompt beside its tokens; none: text only.
    pub media: Option<Arc<PromptMedia>>,
    /// Choice of tokens, and end of continuations.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the output, if any. A pure function of the output, so any replica may evaluate it;
    /// another process compiles it again from its source.
    pub constraint: Option<OutputForm>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<RequestedAdapter>,
    /// The continuations to generate.
    pub continuations: Continuations,
}

/// An adapter: as this process's executors know it, and the name by which other processes know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedAdapter {
    /// Its number here, and its digest.
    pub adapter: Adapter,
    /// Its name everywhere.
    pub name: Arc<str>,
}

/// The continuations that a replica generates.
#[derive(Debug, Clone)]
pub enum Continuations {
    /// Continuations of a request that has not run anywhere: indices 0 to `n` − 1, `n` at least 1.
    New {
        /// Their number.
        n: u32,
    },
    /// Continuations of a request whose prompt another replica has computed and reported: those that have not
    /// ended, by ascending index, at least one. Nothing is reported about the prompt again.
    Resumed(Vec<ResumedContinuation>),
}

impl ReplicaRequest {
    /// Number of continuations to generate.
    pub fn n_continuations(&self) -> u32 {
        match &self.continuations {
            Continuations::New { n } => *n,
            Continuations::Resumed(continuations) => continuations.len() as u32,
        }
    }
}
