//! State shared by handles, streams and the engine thread: the clock's origin, the intake, the latest
//! numbers and logs. No lock is held for longer than the planning of a step or the recording of its end.
//! Does not know how steps run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use throng_core::engine::{EngineConfig, EngineState, EngineStats, InputLog, Intake, StepLog};
use throng_core::scheduling::block_pool::CacheLog;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::{Nanos, Timestamp};

/// Maximum number of kept changes of the prefix cache; a reader that missed more gets a list of all blocks.
const MAX_CACHE_EVENTS: usize = 1 << 16;

/// State that all of an engine's threads share.
#[derive(Debug)]
pub struct Shared {
    origin: Instant,
    /// Capacity of the first executor.
    pub capacity: ExecutorCapacity,
    /// Id of the next request.
    pub next_request: AtomicU64,
    /// Time of the engine thread's last heartbeat, in nanoseconds since the origin.
    last_beat_ns: AtomicU64,
    intake: Mutex<Intake>,
    stats: Mutex<EngineStats>,
    step_log: Mutex<StepLog>,
    input_log: Mutex<InputLog>,
    /// Whether the changes of the prefix cache are recorded.
    is_cache_followed: AtomicBool,
    cache_log: Mutex<CacheLog>,
}

impl Shared {
    /// Creates the state of an engine that starts now.
    pub fn new(config: &EngineConfig, capacity: ExecutorCapacity) -> Self {
        let max_bytes = usize::try_from(config.max_logged_input_bytes).unwrap_or(usize::MAX);
        Self {
            origin: Instant::now(),
            capacity,
            next_request: AtomicU64::new(0),
            last_beat_ns: AtomicU64::new(0),
            intake: Mutex::new(Intake::new(&config.scheduler, capacity)),
            stats: Mutex::new(EngineStats::default()),
            step_log: Mutex::new(StepLog::new(config.max_logged_steps as usize)),
            input_log: Mutex::new(InputLog::new(config.max_logged_inputs as usize, max_bytes)),
            is_cache_followed: AtomicBool::new(false),
            cache_log: Mutex::new(CacheLog::new(MAX_CACHE_EVENTS)),
        }
    }

    /// Time since the engine's start.
    pub fn now(&self) -> Timestamp {
        Timestamp::default() + Nanos::from(self.origin.elapsed())
    }

    /// Admission of requests.
    pub fn intake(&self) -> MutexGuard<'_, Intake> {
        lock(&self.intake)
    }

    /// State of the engine.
    pub fn state(&self) -> EngineState {
        self.intake().state()
    }

    /// Advances to `state`; a state never returns to an earlier one.
    pub fn advance_state(&self, state: EngineState) {
        self.intake().advance_state(state);
    }

    /// Records a heartbeat of the engine thread.
    pub fn beat(&self) {
        self.last_beat_ns.store(self.now().as_ns(), Ordering::Relaxed);
    }

    /// Time since the engine thread's last heartbeat.
    pub fn silence(&self) -> Nanos {
        self.now().since(Timestamp::from_ns(self.last_beat_ns.load(Ordering::Relaxed)))
    }

    /// The engine's numbers after the latest input.
    pub fn stats(&self) -> MutexGuard<'_, EngineStats> {
        lock(&self.stats)
    }

    /// Log of the latest steps.
    pub fn step_log(&self) -> MutexGuard<'_, StepLog> {
        lock(&self.step_log)
    }

    /// Starts recording the changes of the prefix cache.
    pub fn follow_cache(&self) {
        self.is_cache_followed.store(true, Ordering::Relaxed);
    }

    /// Whether the changes of the prefix cache are recorded.
    pub fn is_cache_followed(&self) -> bool {
        self.is_cache_followed.load(Ordering::Relaxed)
    }

    /// The changes of the prefix cache.
    pub fn cache_log(&self) -> MutexGuard<'_, CacheLog> {
        lock(&self.cache_log)
    }

    /// Log of the latest inputs.
    pub fn input_log(&self) -> MutexGuard<'_, InputLog> {
        lock(&self.input_log)
    }
}

/// Locks a mutex, also a poisoned one: the values are consistent after every statement, also after a panic
/// elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
