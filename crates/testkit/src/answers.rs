//! Client-visible results of requests, down to the bits, for tests that compare one schedule with another.

use std::collections::BTreeMap;

use throng_core::request::{RequestId, SequenceId};
use throng_core::scheduling::batch::ChosenToken;
use throng_core::scheduling::scheduler::Event;

/// A token and the alternatives reported beside it: ids, the bits of their log-probabilities, ranks.
pub type Report = Vec<(u32, u32, u32)>;

/// Prompt reports by request, output reports by sequence.
#[derive(Debug, Default, PartialEq)]
pub struct Answers {
    /// The prompt's tokens, for requests with their log-probabilities.
    pub prompts: BTreeMap<RequestId, Vec<Report>>,
    /// Reports of the output tokens, by sequence.
    pub outputs: BTreeMap<SequenceId, Vec<Report>>,
}

impl Answers {
    /// Adds the content of an event.
    ///
    /// # Panics
    /// When a request failed.
    pub fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::PromptToken { request, token } => {
                self.prompts.entry(*request).or_default().push(report(token))
            }
            Event::Token { sequence, token } => {
                self.outputs.entry(*sequence).or_default().push(report(token))
            }
            Event::Failed { request, failure } => panic!("request {request:?} failed: {failure}"),
            Event::Dequeued { .. } | Event::PromptDone { .. } | Event::Finished { .. } => {}
        }
    }

    /// The answers to request number `from`, changed to those of number `to`.
    pub fn renamed(&self, from: usize, to: usize) -> Self {
        let (from, to) = (RequestId(from as u64), RequestId(to as u64));
        let of = |sequence: &SequenceId| sequence.request == from;
        let outputs = self.outputs.iter().filter(|(sequence, _)| of(sequence));
        let rename = |sequence: &SequenceId| SequenceId { request: to, ..*sequence };
        Self {
            prompts: self.prompts.get(&from).map(|reports| (to, reports.clone())).into_iter().collect(),
            outputs: outputs.map(|(sequence, reports)| (rename(sequence), reports.clone())).collect(),
        }
    }
}

fn report(token: &ChosenToken<'_>) -> Report {
    let all = std::iter::once(&token.chosen).chain(token.top);
    all.map(|entry| (entry.token, entry.logprob.to_bits(), entry.rank)).collect()
}
