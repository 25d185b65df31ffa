//! The readers of all open streams: what waits for them, and who has to tell what. They read as real streams
//! do, at random times.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use throng_core::request::{Request, RequestId};
use throng_engine::StreamEvent;

/// All readers.
#[derive(Default)]
pub struct Readers {
    open: BTreeMap<RequestId, Reader>,
}

struct Reader {
    /// Weights of the events that wait.
    waiting: VecDeque<usize>,
    n_waiting: usize,
    high_mark: usize,
    /// The engine was told that it is behind, and not that it has caught up.
    is_behind: bool,
    /// Events that came since the engine was told.
    n_since: usize,
    /// Most events that may come since then: one step's.
    most_since: usize,
}

impl Readers {
    pub fn open(&mut self, request: &Request, high_mark: usize) {
        let (n, max_tokens) = (request.n as usize, request.sampling.max_tokens as usize);
        let reader = Reader {
            waiting: VecDeque::new(),
            n_waiting: 0,
            high_mark,
            is_behind: false,
            n_since: 0,
            // All of what a beam search found comes at its end.
            most_since: 1 + n * if request.beam_search().is_some() { 1 + max_tokens } else { 2 },
        };
        self.open.insert(request.id, reader);
    }

    pub fn close(&mut self, request: RequestId) {
        self.open.remove(&request);
    }

    /// An event comes. The weight of what waits when the engine is to be told that the reader is behind.
    pub fn deliver(&mut self, request: RequestId, event: &StreamEvent) -> Result<Option<usize>, String> {
        let reader = self.open.get_mut(&request).ok_or("an event for a stream that is not open")?;
        reader.waiting.push_back(event.weight());
        reader.n_waiting += event.weight();
        if reader.is_behind {
            reader.n_since += 1;
            if reader.n_since > reader.most_since {
                return Err(format!("{} events since its reader fell behind", reader.n_since));
            }
        } else if reader.n_waiting >= reader.high_mark {
            (reader.is_behind, reader.n_since) = (true, 0);
            return Ok(Some(reader.n_waiting));
        }
        Ok(None)
    }

    /// The reader of some stream takes some events. Its request, when it has to tell that it has caught up.
    pub fn read(&mut self, rng: &mut Rng, n: usize) -> Option<RequestId> {
        let request = *rng.choice(self.open.keys())?;
        let reader = self.open.get_mut(&request)?;
        for _ in 0..n {
            reader.n_waiting -= reader.waiting.pop_front()?;
            if reader.is_behind && reader.n_waiting <= reader.high_mark / 2 {
                reader.is_behind = false;
                return Some(request);
            }
        }
        None
    }
}
