//! The workers of a stage that requests or tokens pass. Does not know requests.

use std::collections::VecDeque;

use throng_core::time::Timestamp;

use crate::fleet::Stage;

/// Workers of a stage, and the times at which they become free, in increasing order.
#[derive(Debug)]
pub(super) struct Workers {
    stage: Stage,
    free_at: VecDeque<Timestamp>,
}

impl Workers {
    pub(super) fn new(stage: Stage) -> Self {
        let free_at = (0..stage.n_workers).map(|_| Timestamp::default()).collect();
        Self { stage, free_at }
    }

    /// Time at which a message of `n_tokens` tokens that arrives now has passed the stage.
    #[inline]
    pub(super) fn pass(&mut self, n_tokens: u64, now: Timestamp) -> Timestamp {
        if self.stage.is_free() {
            return now;
        }
        let time = self.stage.time(n_tokens);
        let Some(first) = self.free_at.pop_front() else { return now };
        let end = first.max(now) + time;
        // Mostly the last one: messages come nearly in order, and take nearly the same time.
        match self.free_at.back() {
            Some(last) if *last > end => {
                let place = self.free_at.partition_point(|at| *at <= end);
                self.free_at.insert(place, end);
            }
            _ => self.free_at.push_back(end),
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use fastrand::Rng;
    use throng_core::time::Nanos;

    use super::*;

    /// Messages that come out of order too end when they would with any queue of the workers.
    #[test]
    fn the_worker_that_is_free_first_takes_the_next_message() {
        for seed in 0..50 {
            let mut rng = Rng::with_seed(seed);
            let stage = Stage {
                fixed: Nanos(rng.u64(1..1_000)),
                per_token_ns: rng.f64() * 50.0,
                n_workers: rng.u32(1..6),
            };
            let mut workers = Workers::new(stage);
            let mut free_at: BinaryHeap<Reverse<Timestamp>> =
                (0..stage.n_workers).map(|_| Reverse(Timestamp::default())).collect();
            for _ in 0..2_000 {
                let (at, n_tokens) = (Timestamp::from_ns(rng.u64(0..500_000)), rng.u64(1..40));
                let Some(Reverse(first)) = free_at.pop() else { return };
                let end = first.max(at) + stage.time(n_tokens);
                free_at.push(Reverse(end));
                assert_eq!(workers.pass(n_tokens, at), end, "seed {seed}");
            }
        }
    }
}
