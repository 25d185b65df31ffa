//! Outcomes of a run: one record a request, samples of replicas, totals.

use serde::{Deserialize, Serialize};
use throng_core::request::TokenId;
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::RequestLatency;

use crate::workload::TimedRequest;

/// Reason why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The model ended its output.
    Stop,
    /// The output has as many tokens as the client or the context allows.
    Length,
    /// A rate limit refused it.
    RateLimited,
    /// The overload gate refused it.
    Overloaded,
    /// The request can never run: too long, or more tokens than a limit allows.
    NeverFits,
    /// The queues of all tried replicas were full.
    QueueFull,
    /// The wait for its first step was too long.
    QueueTimeout,
    /// All replicas failed, or there was none.
    Failed,
    /// The client disconnected.
    GaveUp,
}

impl EndReason {
    /// Whether the answer is complete.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Stop | Self::Length)
    }

    /// Whether the request was refused because of load, so that nothing was computed.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::QueueFull)
    }
}

/// One request that has ended, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequestOutcome {
    /// Number of the request, in order of sending.
    pub number: u64,
    /// [`TimedRequest::tag`](crate::workload::TimedRequest::tag).
    pub tag: u64,
    /// Number of its tenant.
    pub tenant: u32,
    /// Nanoseconds from the beginning until the client sent it.
    pub sent_ns: u64,
    /// Time from its arrival at the gateway to its first step; `None` where it had none.
    pub queued: Option<Nanos>,
    /// Latency as the client saw it.
    pub latency: RequestLatency,
    /// Number of prompt tokens.
    pub n_prompt: u32,
    /// Number of prompt tokens that were cached at the first replica.
    pub n_cached: u32,
    /// Number of output tokens that the client got.
    pub n_output: u32,
    /// Number of the client's retries.
    pub n_retries: u32,
    /// Times that it moved to another replica.
    pub n_failovers: u32,
    /// Index of the replica that ran it last.
    pub replica: Option<u32>,
    /// Reason of its end.
    pub end: EndReason,
}

impl RequestOutcome {
    /// Time at which the client saw the end.
    pub fn ended(&self) -> Timestamp {
        Timestamp::from_ns(self.sent_ns) + self.latency.end_to_end
    }
}

/// A sample of a replica's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReplicaSample {
    /// Nanoseconds since the beginning.
    pub at_ns: u64,
    /// Index of the replica.
    pub replica: u32,
    /// Whether it runs.
    pub is_up: bool,
    /// Number of sequences that run: the batch.
    pub n_running: u32,
    /// Number of sequences that wait: the queue.
    pub n_waiting: u32,
    /// Number of KV blocks that sequences hold.
    pub used_blocks: u32,
    /// Number of KV blocks that no sequence holds and whose content can be found.
    pub cached_blocks: u32,
    /// Number of all KV blocks.
    pub total_blocks: u32,
    /// Number of steps since the sample before.
    pub n_steps: u64,
    /// Time in steps since the sample before.
    pub busy: Nanos,
    /// Number of prompt tokens computed since the sample before.
    pub prompt_tokens: u64,
    /// Number of output tokens since the sample before.
    pub output_tokens: u64,
}

/// A decision of the autoscaler, and the numbers behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ScaleSample {
    /// Nanoseconds since the beginning.
    pub at_ns: u64,
    /// Desired number of replicas.
    pub n_desired: u32,
    /// Replicas that take requests.
    pub n_serving: u32,
    /// Replicas that run, including those that start and those that end.
    pub n_paid: u32,
    /// Running sequences on replicas that take requests.
    pub n_running: u64,
    /// Number of sequences that wait there.
    pub n_waiting: u64,
    /// Requests so far that found no replica.
    pub n_unserved: u64,
}

/// Totals of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of events of the simulation.
    pub n_events: u64,
    /// Number of requests that clients made, without retries.
    pub n_requests: u64,
    /// Number of steps of all replicas.
    pub n_steps: u64,
    /// Time in steps, summed over replicas.
    pub busy: Nanos,
    /// Number of computed prompt tokens.
    pub prompt_tokens: u64,
    /// Number of computed output tokens.
    pub output_tokens: u64,
    /// Number of prompt tokens looked up in prefix caches.
    pub cache_query_tokens: u64,
    /// Prompt tokens that were found there.
    pub cache_hit_tokens: u64,
    /// Sequences that lost their blocks and waited again.
    pub preemptions: u64,
    /// Number of replicas that were ejected.
    pub ejections: u64,
    /// Time of the last event.
    pub end_ns: u64,
}

/// Receiver of the events of a run. Each method has an empty default body.
pub trait Observer {
    /// A client sends a request for the first time.
    fn sent(&mut self, _number: u64, _timed: &TimedRequest) {}
    /// A client will retry: the answer begins anew.
    fn retried(&mut self, _number: u64) {}
    /// A token reaches its client. `index` counts the tokens of the answer from 0.
    fn token(&mut self, _number: u64, _index: u32, _token: TokenId, _at: Timestamp) {}
    /// The gap between this token of an answer and the one before, at the client.
    fn gap(&mut self, _gap: Nanos) {}
    /// The gateway has admitted a request: limits and gate have been charged.
    fn admitted(&mut self, _number: u64, _tenant: u32, _at: Timestamp) {}
    /// The gateway has returned the charge of a request.
    fn released(&mut self, _number: u64, _tenant: u32, _at: Timestamp) {}
    /// A request has ended.
    fn ended(&mut self, _outcome: &RequestOutcome) {}
    /// A sample of a replica's state was taken.
    fn sampled(&mut self, _sample: &ReplicaSample) {}
    /// The autoscaler has decided.
    fn scaled(&mut self, _sample: &ScaleSample) {}
}

/// An observer that keeps all outcomes and samples.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Outcomes in order of the requests' ends.
    pub outcomes: Vec<RequestOutcome>,
    /// Samples in order of time.
    pub samples: Vec<ReplicaSample>,
}

impl Observer for Recorder {
    fn ended(&mut self, outcome: &RequestOutcome) {
        self.outcomes.push(*outcome);
    }

    fn sampled(&mut self, sample: &ReplicaSample) {
        self.samples.push(*sample);
    }
}
