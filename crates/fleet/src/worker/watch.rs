//! The worker's regular status lines to a gateway. Does not know the readers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use throng_core::scheduling::block_pool::CacheCursor;
use throng_http::Phase;
use throng_wire::{HEARTBEAT_MS, MAX_CACHE_NAMES};
use tokio::sync::watch as channel;
use tokio::time::{Interval, MissedTickBehavior};

use super::WorkerService;
use crate::replica::Replica;

impl WorkerService {
    /// Status lines: one at once, one with each heartbeat, and one when the worker starts to drain. The
    /// stream ends when a draining worker has no requests left.
    pub fn watch(self: Arc<Self>) -> impl Stream<Item = Bytes> + Send + 'static {
        let mut beat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let phase = self.phase.clone();
        let begun = Watch { worker: self, beat, phase, says_draining: false, cursor: CacheCursor::default() };
        stream::unfold(begun, |mut watch| async move {
            tokio::select! {
                _ = watch.beat.tick() => {}
                _ = watch.phase.wait_for(|phase| *phase >= Phase::HandedOver), if !watch.says_draining => {}
            }
            if watch.says_draining && watch.worker.replica.load().n_sequences() == 0 {
                return None;
            }
            watch.says_draining = watch.worker.is_draining();
            let news = watch.worker.replica.0.cache_news(&mut watch.cursor);
            let cache = (!news.is_empty()).then(|| news.limited_to(MAX_CACHE_NAMES));
            let line = throng_wire::line(&throng_wire::Status { cache, ..watch.worker.status() }).ok()?;
            Some((Bytes::from(line), watch))
        })
    }
}

/// The status lines for one gateway.
struct Watch {
    worker: Arc<WorkerService>,
    beat: Interval,
    phase: channel::Receiver<Phase>,
    /// Whether the last line announced draining.
    says_draining: bool,
    /// Position in the changes of the prefix cache.
    cursor: CacheCursor,
}
