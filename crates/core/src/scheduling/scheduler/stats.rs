//! The scheduler's numbers. Does not know how they come about.

/// Counts since the scheduler was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that ended.
    pub steps: u64,
    /// Tokens computed for prompts, those computed again after a preemption included.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Number of times that a step computed drafts of a sequence.
    pub drafts: u64,
    /// Drafts that were computed.
    pub draft_tokens: u64,
    /// Drafts that became output tokens.
    pub accepted_draft_tokens: u64,
    /// Number of times that a sequence got no token because its masks were not there in time.
    pub left_out: u64,
    /// Sequences that lost their blocks and wait again.
    pub preemptions: u64,
    /// Prompt tokens that were looked for in the cache.
    pub cache_query_tokens: u64,
    /// Prompt tokens that were found there.
    pub cache_hit_tokens: u64,
}

/// A look at the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that run and sit out the steps because their masks are not there.
    pub awaiting_masks: usize,
    /// Sequences that wait, preempted ones included.
    pub waiting: usize,
    /// Sequences that are paused because their readers are behind.
    pub paused: usize,
    /// Requests that wait for their first step.
    pub queued_requests: usize,
    /// Their prompt tokens.
    pub queued_tokens: usize,
    /// Prompt tokens that running sequences have not computed yet.
    pub prefilling_tokens: usize,
    /// KV blocks in all.
    pub total_blocks: usize,
    /// KV blocks that sequences hold.
    pub used_blocks: usize,
    /// KV blocks that nobody holds and whose content can be found again.
    pub cached_blocks: usize,
    /// Counts so far.
    pub counters: Counters,
}
