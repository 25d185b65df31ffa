//! A recording as a workload: the requests in order of arrival, with their recorded outputs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_core::engine::recording::{Event, Submit};
use throng_core::engine::{RecordedOutput, RecordedRequest};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::time::Timestamp;

use super::reader::RecordingReader;
use crate::error::SimError;
use crate::workload::{SimRequest, Span, TimedRequest, Workload, content_id};

/// Content of prompts and outputs that no block names.
const UNNAMED: u64 = 41;
const OUTPUT: u64 = 42;

/// A request of a recording with its outputs.
#[derive(Debug)]
struct RecordedArrival {
    /// Time at which it was handed in.
    arrived: Timestamp,
    request: RecordedRequest,
    /// Whether it continues one in the recording of another replica.
    is_resumed: bool,
}

/// Reads all requests of a recording. A request that has not ended by the end of the recording has no output.
///
/// # Errors
/// Those of the reader; [`SimError::Empty`] when there is no request.
fn read_requests(mut reader: RecordingReader) -> Result<Vec<RecordedArrival>, SimError> {
    let mut requests: Vec<RecordedArrival> = Vec::new();
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    while let Some(line) = reader.next_line()? {
        match line.event {
            Event::Submit(submit) => {
                places.insert(submit.id, requests.len());
                requests.push(arrival(&submit));
            }
            Event::End(end) => {
                let place = places.get(&end.id).and_then(|place| requests.get_mut(*place));
                let output = place.and_then(|one| one.request.outputs.get_mut(end.index as usize));
                output.into_iter().for_each(|output| *output = end.output());
            }
            _ => {}
        }
    }
    if requests.is_empty() { Err(SimError::Empty) } else { Ok(requests) }
}

fn arrival(submit: &Submit) -> RecordedArrival {
    RecordedArrival {
        arrived: Timestamp::from_ns(submit.arrived_ns),
        request: submit.request(vec![RecordedOutput::default(); submit.n as usize]),
        is_resumed: !submit.resumed.is_empty(),
    }
}

/// The load of a recording. Continuations of one request become requests that share its prompt; a resumed
/// request is left out, since the one that it resumes is in the recording of another replica.
#[derive(Debug)]
pub struct RecordedWorkload {
    requests: VecDeque<TimedRequest>,
}

impl RecordedWorkload {
    /// The load of a recording, from its first request on.
    ///
    /// # Errors
    /// Those of the reader; [`SimError::Empty`] when there is no request.
    pub fn read(reader: RecordingReader) -> Result<Self, SimError> {
        let mut arrivals = read_requests(reader)?;
        arrivals.retain(|arrival| !arrival.is_resumed);
        // What was handed in by several threads may have arrived in another order.
        arrivals.sort_by_key(|arrival| arrival.arrived);
        let Some(first) = arrivals.first().map(|arrival| arrival.arrived) else {
            return Err(SimError::Empty);
        };
        let requests = arrivals.iter().flat_map(|arrival| timed(arrival, first)).collect();
        Ok(Self { requests })
    }

    /// Number of requests that are left.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl Workload for RecordedWorkload {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        Ok(self.requests.pop_front())
    }
}

fn timed(arrival: &RecordedArrival, first: Timestamp) -> impl Iterator<Item = TimedRequest> {
    let RecordedArrival { arrived, request, .. } = arrival;
    let at = Timestamp::default() + arrived.since(first);
    let prompt = prompt_spans(request);
    request.outputs.iter().enumerate().map(move |(index, output)| {
        let tag = request.id;
        let content = content_id(tag, OUTPUT, index as u64);
        // At least one token: what was cut off before its first one has asked for one all the same.
        let output_span = Span { content, n_tokens: output.n_tokens.max(1) };
        let request = SimRequest {
            tenant: request.tenant,
            priority: request.priority.0,
            max_tokens: if output.stops {
                request.max_tokens.max(output_span.n_tokens)
            } else {
                output_span.n_tokens
            },
            stops: output.stops,
            ..SimRequest::new(Arc::clone(&prompt), output_span)
        };
        TimedRequest { at, request, tag }
    })
}

/// The prompt as spans: a named block each, and the rest.
fn prompt_spans(request: &RecordedRequest) -> Arc<[Span]> {
    let named = request
        .prompt_blocks
        .iter()
        .map(|BlockKey(key)| Span { content: *key, n_tokens: BLOCK_TOKENS as u32 });
    let n_named = (request.prompt_blocks.len() * BLOCK_TOKENS) as u32;
    let rest = Span {
        content: content_id(request.id, UNNAMED, 0),
        n_tokens: request.prompt_tokens.saturating_sub(n_named),
    };
    named.chain([rest]).filter(|span| span.n_tokens > 0).collect()
}
