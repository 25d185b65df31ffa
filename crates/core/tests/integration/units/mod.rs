//! Tests of single parts through what they offer to others.

mod acceptance;
mod adapter_names;
mod block_names;
mod budget;
mod cache_events;
mod cached_prefixes;
mod dispatch;
mod failover;
mod latency;
mod masks;
mod media_content;
mod prompt_lookup;
mod prompt_media;
mod slot_pool;
mod step_time;
mod token_masks;
