//! Numbers of the scheduler. Does not count.

use std::ops::AddAssign;

use crate::scheduling::block_pool::EvictionCounters;
use crate::scheduling::block_store::StoreCounters;

/// Counts since the scheduler was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of steps that ended.
    pub steps: u64,
    /// Number of tokens computed for prompts, those computed again after a preemption included.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Number of times that a step computed drafts of a sequence.
    pub drafts: u64,
    /// Drafts that were computed.
    pub draft_tokens: u64,
    /// Drafts that became output tokens.
    pub accepted_draft_tokens: u64,
    /// Number of times that a sequence got no token because its masks were not evaluated in time.
    pub left_out: u64,
    /// Number of sequences that lost their blocks and wait again.
    pub preemptions: u64,
    /// Number of prompt tokens looked up in the cache.
    pub cache_query_tokens: u64,
    /// Number of prompt tokens that were found there.
    pub cache_hit_tokens: u64,
    /// Prompt tokens found in the cache that came back from the store.
    pub restored_hit_tokens: u64,
    /// Pictures that were encoded.
    pub encoded_media: u64,
    /// Number of pictures whose features were cached when a prompt reached them.
    pub known_media: u64,
}

impl Counters {
    /// Notes that `n_tokens` prompt tokens were looked up in the cache, and the number found.
    pub(super) fn note_lookup(&mut self, n_tokens: usize, n_found: usize) {
        self.cache_query_tokens += n_tokens as u64;
        self.cache_hit_tokens += n_found as u64;
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.drafts += other.drafts;
        self.draft_tokens += other.draft_tokens;
        self.accepted_draft_tokens += other.accepted_draft_tokens;
        self.left_out += other.left_out;
        self.preemptions += other.preemptions;
        self.cache_query_tokens += other.cache_query_tokens;
        self.cache_hit_tokens += other.cache_hit_tokens;
        self.restored_hit_tokens += other.restored_hit_tokens;
        self.encoded_media += other.encoded_media;
        self.known_media += other.known_media;
    }
}

/// Current numbers of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Number of running sequences.
    pub running: usize,
    /// Number of running sequences that sit out the steps because their masks are not evaluated yet.
    pub awaiting_masks: usize,
    /// Number of waiting sequences, preempted ones included.
    pub waiting: usize,
    /// Number of sequences that are paused because their readers are behind.
    pub paused: usize,
    /// Number of requests that wait for their first step.
    pub queued_requests: usize,
    /// Number of prompt tokens of those requests.
    pub queued_tokens: usize,
    /// Number of prompt tokens that running sequences have not computed yet.
    pub prefilling_tokens: usize,
    /// Number of KV blocks.
    pub total_blocks: usize,
    /// Number of KV blocks that sequences hold.
    pub used_blocks: usize,
    /// Number of KV blocks that no sequence holds and whose content can be found.
    pub cached_blocks: usize,
    /// Number of those that a client asked to keep.
    pub marked_blocks: usize,
    /// Counts of blocks whose content was dropped.
    pub evictions: EvictionCounters,
    /// Number of blocks in the store; 0 without one.
    pub stored_blocks: usize,
    /// Counts of the store.
    pub store: StoreCounters,
    /// Counts since the start.
    pub counters: Counters,
}
