//! Requests to replicas: token ids and numbers, plain enough to be sent to another process. Does not know
//! text or HTTP.

use std::sync::Arc;

use throng_core::fleet::replica::ResumedContinuation;
use throng_core::prompt_media::PromptMedia;
use throng_core::request::{Adapter, BlockHolder, CacheMark, Priority, SamplingParams, TenantId, TokenId};
use throng_wire::Holder;

use crate::constraint::OutputForm;

/// A prompt to continue. Cloning it does not copy the prompt.
#[derive(Debug, Clone)]
pub struct ReplicaRequest {
    /// Tenant, for fair shares and for separate prefix caches.
    pub tenant: TenantId,
    /// Salt that further separates cached prefixes within the tenant.
    pub cache_salt: Option<Arc<str>>,
    /// Name of the tenant's requests that begin like this one: they go to one replica where its load permits.
    pub session: Option<Arc<str>>,
    /// Prefixes that the client asks to keep cached.
    pub cache_marks: Vec<CacheMark>,
    /// Priority among the tenant's requests.
    pub priority: Priority,
    /// Tokens of the prompt, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Media in the prompt; `None`: text only.
    pub media: Option<Arc<PromptMedia>>,
    /// Sampling parameters and stop conditions.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the output, if any. It is a pure function of the output, so any replica may evaluate
    /// it; another process compiles it again from its source.
    pub constraint: Option<OutputForm>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<RequestedAdapter>,
    /// The continuations to generate.
    pub continuations: Continuations,
    /// Another replica from which the beginning of the prompt may be taken over.
    pub holder: Option<PrefixHolder>,
}

/// A replica that has the beginning of a prompt in its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefixHolder {
    /// A worker, for another worker.
    Worker(Holder),
    /// A worker that an engine of this process can ask.
    Peer(BlockHolder),
}

/// An adapter, as the executors of this process identify it, and its name in other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedAdapter {
    /// Number of the adapter in this process, and its digest.
    pub adapter: Adapter,
    /// Name of the adapter in all processes.
    pub name: Arc<str>,
}

/// Continuations that a replica generates.
#[derive(Debug, Clone)]
pub enum Continuations {
    /// Continuations of a new request: indices 0 to `n` − 1, `n` at least 1.
    New {
        /// Number of continuations.
        n: u32,
    },
    /// Unfinished continuations, at least one, by ascending index, of a request whose prompt another
    /// replica has computed and reported. The prompt is not reported again.
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
