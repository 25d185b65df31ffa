//! Waiting for the counter of another rank: spinning first, then asleep. Does not know the meaning of
//! counters.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use throng_os::shared_memory::{wait_for_change, wake_all};

use super::SharedHost;
use super::lease::Watch;
use crate::{CommError, Deadline, Loss};

/// Time of spinning: as long as it takes to wake a thread that sleeps.
const SPINNING: Duration = Duration::from_micros(50);
/// Number of checks of the counter between two checks of the clock.
const LOOKS: usize = 64;
/// Longest sleep: leases are watched after each.
const SLEEP: Duration = Duration::from_millis(50);

/// A counter and the number of threads that sleep until it changes.
#[derive(Clone, Copy)]
pub(super) struct Counter<'a> {
    value: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl<'a> Counter<'a> {
    pub(super) fn at(host: &'a SharedHost, [value, sleepers]: [usize; 2]) -> Self {
        let flags = host.memory.flags();
        Self { value: &flags[value], sleepers: &flags[sleepers] }
    }

    pub(super) fn get(self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the counter, after all that this thread wrote before, and wakes the threads that wait for it.
    pub(super) fn set(self, value: u32) {
        // In one order with the look at the sleepers, and with their look at the value.
        self.value.store(value, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            wake_all(self.value);
        }
    }

    /// Waits until `is_enough` accepts the counter of `rank`, and returns it.
    pub(super) fn wait(
        self,
        is_enough: impl Fn(u32) -> bool,
        (host, rank): (&SharedHost, usize),
        watch: &mut Watch,
        deadline: Deadline,
    ) -> Result<u32, CommError> {
        let value = self.get();
        if is_enough(value) {
            return Ok(value);
        }
        let since = Instant::now();
        while since.elapsed() < SPINNING {
            for _ in 0..LOOKS {
                let value = self.get();
                if is_enough(value) {
                    return Ok(value);
                }
                std::hint::spin_loop();
            }
        }
        loop {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let value = self.value.load(Ordering::SeqCst);
            if !is_enough(value) {
                wait_for_change(self.value, value, SLEEP);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            let value = self.get();
            if is_enough(value) {
                return Ok(value);
            }
            let mut lost = watch.check(host, rank, since);
            if lost.is_ok() && deadline.has_passed() {
                lost = Err(CommError::PeerLost { rank, how: Loss::TimedOut });
            }
            if let Err(lost) = lost {
                // The rank may have sent it just before it ended.
                let value = self.get();
                return if is_enough(value) { Ok(value) } else { Err(lost) };
            }
        }
    }
}

/// Whether a counter that wraps around has reached `value`.
pub(super) fn has_reached(counter: u32, value: u32) -> bool {
    counter.wrapping_sub(value) as i32 >= 0
}
