//! Pausing of requests whose readers are behind: they leave the steps with all their blocks, and later wait
//! again at their old place. Does not know readers and buffers, and does not decide when to pause.

use super::Scheduler;
use crate::request::{RequestId, SequenceId};

impl Scheduler {
    /// Takes all continuations of a request out of the steps until [`Self::resume`]. Their blocks go back
    /// to the pool, where their content can be found until it is evicted; their tokens stay. Results of
    /// steps in flight for them are dropped. Does nothing if the request has ended.
    pub fn pause(&mut self, request: RequestId) {
        for sequence in self.running.extract_if(.., |sequence| sequence.request.id == request) {
            let sequence = sequence.pause(&mut self.pool);
            self.paused.insert(sequence.id(), sequence);
        }
        let n = self.requests.get(&request).map_or(0, |progress| progress.request.n_sequences());
        for index in 0..n {
            let id = SequenceId { request, index };
            let waiting = self.take_waiting(id).or_else(|| self.idle_beams.remove(&id));
            if let Some(sequence) = waiting {
                self.paused.insert(id, sequence.pause());
            }
        }
    }

    /// Lets a paused request wait again, at the place of its priority and arrival. Does nothing if it is
    /// not paused.
    pub fn resume(&mut self, request: RequestId) {
        let n = self.requests.get(&request).map_or(0, |progress| progress.request.n_sequences());
        for index in 0..n {
            if let Some(sequence) = self.paused.remove(&SequenceId { request, index }) {
                let sequence = sequence.resume();
                if self.awaits_beams(sequence.id()) {
                    self.idle_beams.insert(sequence.id(), sequence);
                } else {
                    self.waiting.insert(sequence);
                }
            }
        }
    }
}
