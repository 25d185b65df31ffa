//! The profile of a load: lengths, rates, and the share of the prompts that a prefix cache of a given size
//! would have found.

use serde::Serialize;
use throng_core::fleet::routing::CachedPrefixes;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::timeline::latency::percentile;

use crate::error::SimError;
use crate::workload::{SimRequest, Span, Workload, content_id};

/// Maximum number of requests whose lengths a profile keeps.
const MAX_REQUESTS: usize = 10_000_000;

/// Percentiles of a length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Lengths {
    /// Mean number of tokens.
    pub mean: f64,
    /// Median number of tokens.
    pub p50: u32,
    /// 90th percentile of the numbers of tokens.
    pub p90: u32,
    /// 99th percentile of the numbers of tokens.
    pub p99: u32,
    /// Largest number of tokens.
    pub max: u32,
}

impl Lengths {
    fn of(mut values: Vec<u32>) -> Self {
        values.sort_unstable();
        let at = |percent| percentile(&values, percent).unwrap_or(0);
        let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
        Self {
            mean: sum as f64 / values.len().max(1) as f64,
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            max: at(100.0),
        }
    }
}

/// Hits of a cache of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CacheHits {
    /// Number of tokens that it has room for; `None`: any number.
    pub capacity_tokens: Option<u64>,
    /// Share of the prompt tokens that was found.
    pub hit_share: f64,
}

/// Profile of a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceProfile {
    /// Number of requests.
    pub n_requests: u64,
    /// Time from the first to the last arrival.
    pub duration_s: f64,
    /// Mean number of requests per second.
    pub mean_rate: f64,
    /// Requests per second in the busiest minute.
    pub peak_rate: f64,
    /// Coefficient of variation of the gaps between arrivals: 1 for independent ones, more for bursts.
    pub gap_cv: f64,
    /// Lengths of prompts in tokens.
    pub prompt: Lengths,
    /// Lengths of outputs in tokens.
    pub output: Lengths,
    /// Number of all prompt tokens.
    pub prompt_tokens: u64,
    /// Number of all output tokens.
    pub output_tokens: u64,
    /// Hits by size of the cache, one cache for all; the least recently used blocks are dropped.
    pub cache: Vec<CacheHits>,
}

/// Computes the profile of a load, with the hits of caches of these sizes in tokens and of one without bound.
///
/// # Errors
/// Those of the workload; [`SimError::Empty`] of a load without requests, and when it has too many.
pub fn profile(load: &mut dyn Workload, capacities: &[u64]) -> Result<TraceProfile, SimError> {
    let bounds = capacities.iter().map(|tokens| Some(*tokens)).chain([None]);
    let blocks_of = |tokens: u64| usize::try_from(tokens / BLOCK_TOKENS as u64).unwrap_or(usize::MAX);
    let mut caches: Vec<(Option<u64>, CachedPrefixes, u64)> =
        bounds.map(|bound| (bound, CachedPrefixes::new(bound.map_or(usize::MAX, blocks_of)), 0)).collect();
    let (mut prompts, mut outputs, mut times) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(timed) = load.next_request()? {
        if times.len() == MAX_REQUESTS {
            return Err(SimError::setting("requests", format!("there are more than {MAX_REQUESTS}")));
        }
        times.push(timed.at.as_ns());
        prompts.push(timed.request.n_prompt_tokens());
        outputs.push(timed.request.output.n_tokens);
        let blocks = blocks(&timed.request);
        for (_, cache, n_hits) in &mut caches {
            // The last token is always computed, for its logits.
            let n_found = (cache.n_cached(&blocks) * BLOCK_TOKENS) as u64;
            *n_hits += n_found.min(u64::from(timed.request.n_prompt_tokens()).saturating_sub(1));
            cache.publish(&blocks);
        }
    }
    if times.is_empty() {
        return Err(SimError::Empty);
    }
    let prompt_tokens: u64 = prompts.iter().map(|n| u64::from(*n)).sum();
    let output_tokens = outputs.iter().map(|n| u64::from(*n)).sum();
    let share = |n_hits: u64| n_hits as f64 / prompt_tokens.max(1) as f64;
    let (duration_s, peak_rate, gap_cv) = rates(&times);
    Ok(TraceProfile {
        n_requests: times.len() as u64,
        duration_s,
        mean_rate: if duration_s > 0.0 { times.len() as f64 / duration_s } else { 0.0 },
        peak_rate,
        gap_cv,
        prompt: Lengths::of(prompts),
        output: Lengths::of(outputs),
        prompt_tokens,
        output_tokens,
        cache: caches
            .into_iter()
            .map(|(capacity_tokens, _, n_hits)| CacheHits { capacity_tokens, hit_share: share(n_hits) })
            .collect(),
    })
}

/// Duration in seconds, requests a second in the busiest minute, and variation of the gaps.
fn rates(times: &[u64]) -> (f64, f64, f64) {
    const MINUTE_NS: u64 = 60_000_000_000;
    let (first, last) = (times[0], times[times.len() - 1]);
    let mut n_peak = 0;
    let mut begin = 0;
    for (index, at) in times.iter().enumerate() {
        while at - times[begin] >= MINUTE_NS {
            begin += 1;
        }
        n_peak = n_peak.max(index + 1 - begin);
    }
    let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let n = gaps.len().max(1) as f64;
    let mean = gaps.iter().sum::<f64>() / n;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n;
    let gap_cv = if mean > 0.0 { variance.sqrt() / mean } else { 0.0 };
    let minute_s = ((last - first).min(MINUTE_NS) as f64 / 1e9).max(1.0);
    ((last - first) as f64 / 1e9, n_peak as f64 / minute_s, gap_cv)
}

/// Names of the full blocks of a prompt: equal where all tokens up to there are equal.
fn blocks(request: &SimRequest) -> Vec<BlockKey> {
    let mut keys = Vec::with_capacity(request.n_prompt_tokens() as usize / BLOCK_TOKENS);
    let mut name = content_id(u64::from(request.tenant), 0, 0);
    let mut n_open = 0;
    for Span { content, n_tokens } in &*request.prompt {
        let mut offset = 0;
        while offset < *n_tokens {
            let n = (BLOCK_TOKENS as u32 - n_open).min(n_tokens - offset);
            name = content_id(name, *content, u64::from(offset) << 8 | u64::from(n));
            (offset, n_open) = (offset + n, n_open + n);
            if n_open == BLOCK_TOKENS as u32 {
                keys.push(BlockKey(name));
                n_open = 0;
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use throng_core::time::{Nanos, Timestamp};

    use super::*;
    use crate::workload::TimedRequest;

    #[derive(Debug)]
    struct List(std::vec::IntoIter<TimedRequest>);

    impl Workload for List {
        fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
            Ok(self.0.next())
        }
    }

    fn load(prompts: &[&[(u64, u32)]]) -> List {
        let timed = prompts.iter().zip(0..).map(|(prompt, tag)| {
            let span = |(content, n_tokens): &(u64, u32)| Span { content: *content, n_tokens: *n_tokens };
            let prompt: Vec<Span> = prompt.iter().map(span).collect();
            let request = SimRequest::new(prompt, Span { content: 99, n_tokens: 10 });
            TimedRequest { at: Timestamp::default() + Nanos::from_ms(1_000 * tag), request, tag }
        });
        List(timed.collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn hits_grow_with_the_cache() {
        let prompts: [&[(u64, u32)]; 2] = [&[(1, 160), (2, 32)], &[(3, 192)]];
        let [a, b] = prompts;
        let profile = profile(&mut load(&[a, b, a, b]), &[100, 200]).expect("requests");
        let shares: Vec<f64> = profile.cache.iter().map(|hits| hits.hit_share).collect();
        // Without bound each second request finds all of its prompt but one token.
        assert_eq!(shares, [0.0, 0.0, 2.0 * 191.0 / (4.0 * 192.0)]);
        assert_eq!((profile.n_requests, profile.prompt.p50, profile.output.max), (4, 192, 10));
        assert_eq!((profile.duration_s, profile.gap_cv), (3.0, 0.0));
    }

    #[test]
    fn prefixes_of_other_contents_share_what_is_equal() {
        let profile = profile(&mut load(&[&[(1, 64), (2, 64)], &[(1, 64), (3, 64)]]), &[]).expect("requests");
        assert_eq!(profile.cache[0].hit_share, 64.0 / 256.0);
        assert!(matches!(super::profile(&mut load(&[]), &[]), Err(SimError::Empty)));
    }
}
