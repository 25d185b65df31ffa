//! Constraints on the replica for a request, and the facts about it that its routing depends on. Does not
//! choose replicas.

use std::sync::Arc;

use throng_core::fleet::routing::ReplicaId;
use throng_core::scheduling::block_hash::{BlockHash, BlockKey};

use super::{Continuations, ReplicaRequest, Replicas};
use crate::dispatch::{RegionBound, Wanted};

/// Constraints on the replica for a request.
#[derive(Debug)]
pub struct PlacementHints {
    /// Name of the only replica that may run the request.
    pub pinned: Option<Box<str>>,
    /// Regions that a residency rule binds the request to.
    pub bound: Option<Arc<dyn RegionBound>>,
    /// Whether no other model or engine can answer the request, so that it may wait for a replica before
    /// its first token too.
    pub is_last_resort: bool,
    /// Hashes of the prompt's full blocks, if routing depends on them.
    blocks: Vec<BlockKey>,
    /// Name of the request's session within its tenant, if it has one.
    session: Option<BlockKey>,
}

impl PlacementHints {
    /// Creates the hints of a request, with an optional replica and optional regions.
    pub fn of(
        request: &ReplicaRequest,
        replicas: &Replicas,
        pinned: Option<&str>,
        bound: Option<Arc<dyn RegionBound>>,
        is_last_resort: bool,
    ) -> Self {
        // Block hashes depend on the adapter's digest; a gateway of workers knows only its name.
        let blocks = if replicas.need_blocks() && request.adapter.is_none() {
            let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), None);
            BlockHash::keys_of(root, &request.prompt, request.media.as_deref())
        } else {
            Vec::new()
        };
        let session = request.session.as_deref();
        let session = session.map(|session| BlockHash::root(&request.tenant, Some(session), None).key());
        Self { pinned: pinned.map(Box::from), bound, is_last_resort, blocks, session }
    }

    /// Hashes of the prompt's full blocks.
    pub(super) fn blocks(&self) -> &[BlockKey] {
        &self.blocks
    }

    /// Facts about the request for its routing, which must not go to the replicas in `tried` again.
    pub(super) fn wanted<'a>(&'a self, request: &ReplicaRequest, tried: &'a [ReplicaId]) -> Wanted<'a> {
        let so_far: usize = match &request.continuations {
            Continuations::New { .. } => 0,
            Continuations::Resumed(resumed) => resumed.iter().map(|resumed| resumed.output.len()).sum(),
        };
        let n_tokens = u32::try_from(request.prompt.len() + so_far).unwrap_or(u32::MAX);
        let (pinned, bound) = (self.pinned.as_deref(), self.bound.as_deref());
        Wanted { n_tokens, blocks: &self.blocks, session: self.session, pinned, bound, tried }
    }
}
