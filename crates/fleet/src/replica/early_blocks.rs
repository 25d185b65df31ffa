//! Blocks of a split request on their way while the other replica still computes the rest of the prompt: the
//! replica of the answer is sent beginnings of the prompt that the other one has computed, and takes their
//! blocks over. The request itself then finds them in its cache. Does not wait for the whole prompt.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use throng_core::fleet::routing::ReplicaId;
use throng_core::request::SamplingParams;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_store::LEAST_PULLED_BLOCKS;
use throng_wire::Holder;

use super::hints::PlacementHints;
use super::{Continuations, PrefixHolder, Replica, ReplicaEvent, ReplicaRequest, Replicas};

/// Interval of looks at the blocks that the other replica has. It reports them with its heartbeats.
const INTERVAL: Duration = Duration::from_millis(50);

/// Blocks that were moved early.
#[derive(Debug, Default)]
pub(super) struct EarlyBlocks {
    /// Number of tokens whose blocks came.
    pub n_tokens: AtomicU32,
    /// Whether any were asked for; some may have come that are not counted.
    pub are_begun: AtomicBool,
}

/// Lets `to` take over blocks of the prompt from `from` as this one reports them, and notes in `early` how
/// many tokens it then had beyond the first `n_cached`. Waits for ever where that is of no use: for models
/// whose recurrent states are needed beside the blocks, and after a beginning that did not come.
pub(super) async fn move_early(
    replicas: &Replicas,
    request: &ReplicaRequest,
    hints: &PlacementHints,
    (from, holder): (ReplicaId, &Holder),
    (to, n_cached): (&dyn Replica, u32),
    early: &EarlyBlocks,
) -> Infallible {
    let has_states = to.load().totals.state_blocks > 0;
    let mut n_moved = n_cached as usize / BLOCK_TOKENS;
    while request.media.is_none() && !has_states {
        tokio::time::sleep(INTERVAL).await;
        let n_there = replicas.dispatcher().n_held(from, hints.blocks());
        // The token after them is computed.
        let n_tokens = n_there * BLOCK_TOKENS + 1;
        if n_there < n_moved + LEAST_PULLED_BLOCKS || n_tokens >= request.prompt.len() {
            continue;
        }
        let holder = Holder { n_blocks: n_there as u32, ..holder.clone() };
        let beginning = ReplicaRequest {
            prompt: request.prompt[..n_tokens].into(),
            sampling: Arc::new(SamplingParams { max_tokens: 0, ..SamplingParams::default() }),
            constraint: None,
            continuations: Continuations::New { n: 1 },
            holder: Some(PrefixHolder::Worker(holder)),
            ..request.clone()
        };
        early.are_begun.store(true, Ordering::Relaxed);
        let n_found = n_found(to, beginning).await;
        early.n_tokens.fetch_max(n_found.saturating_sub(n_cached), Ordering::Relaxed);
        if n_found as usize <= n_moved * BLOCK_TOKENS {
            break;
        }
        n_moved = n_found as usize / BLOCK_TOKENS;
    }
    std::future::pending().await
}

/// Number of tokens of a beginning that the replica had, or took over.
async fn n_found(to: &dyn Replica, beginning: ReplicaRequest) -> u32 {
    let Ok(mut generation) = to.generate(beginning).await else { return 0 };
    let mut n_found = 0;
    while let Some(event) = generation.next().await {
        if let ReplicaEvent::Prompt { cached_tokens, .. } = event {
            n_found = cached_tokens;
        }
    }
    n_found
}
