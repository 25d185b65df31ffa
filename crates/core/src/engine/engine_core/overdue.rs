//! Failing of requests that wait too long for their first step or for their reader. Does not know the cause
//! of the delay.

use crate::request::RequestId;
use crate::time::{Nanos, Timestamp};

use super::{Effect, EngineCore};
use crate::engine::error::EngineFailure;

impl EngineCore {
    /// Time at which the next waiting request fails.
    pub(super) fn wait_deadline(&self) -> Option<Timestamp> {
        let waits = [self.queue_deadline(), self.pause_deadline()];
        waits.into_iter().flatten().map(|(deadline, _)| deadline).min()
    }

    /// Fails the requests whose deadlines have passed.
    pub(super) fn end_overdue(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some((deadline, request)) = self.queue_deadline()
            && deadline <= now
        {
            let failure = EngineFailure::QueueTimedOut { timeout_ms: self.config.queue_timeout_ms };
            self.streams.close(request, Some(failure), effects);
            self.abort(request, now, effects);
        }
        while let Some((deadline, request)) = self.pause_deadline()
            && deadline <= now
        {
            self.abort_slow(request, now, effects);
        }
    }

    /// Fails a request whose reader has been behind for too long.
    pub(super) fn abort_slow(&mut self, request: RequestId, now: Timestamp, effects: &mut Vec<Effect>) {
        self.streams.close_slow(request, effects);
        self.abort(request, now, effects);
    }

    fn abort(&mut self, request: RequestId, now: Timestamp, effects: &mut Vec<Effect>) {
        let streams = &mut self.streams;
        self.scheduler.abort(request, now, &mut |event| streams.pass_on(event, effects));
    }

    fn queue_deadline(&self) -> Option<(Timestamp, RequestId)> {
        let timeout = Nanos::from_ms(self.config.queue_timeout_ms);
        let longest = self.streams.longest_queued().filter(|_| timeout.0 > 0);
        longest.map(|(since, request)| (since + timeout, request))
    }

    fn pause_deadline(&self) -> Option<(Timestamp, RequestId)> {
        let timeout = Nanos::from_ms(self.config.pause_timeout_ms);
        self.streams.longest_paused().map(|(since, request)| (since + timeout, request))
    }
}
