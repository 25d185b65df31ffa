//! The fork-join pool of the kernels: workers that spin briefly, then park. Runs one job at a time (no
//! queue); the caller is the first worker.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use throng_os::{affinity, priority};

use crate::float_env::FlushToZero;
use crate::simd::Isa;

/// Time that an idle worker, or a caller whose own share is done, spins before it parks.
const SPIN: Duration = Duration::from_micros(50);

/// A fixed set of threads that run one closure together, and the instruction set they run it on.
///
/// Subnormal numbers are flushed to zero on all threads, also on the caller while it runs a share.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Lock that is held during a run: jobs of several callers run one after the other.
    turn: Mutex<()>,
    isa: Isa,
}

/// The job of the current epoch. The pointee outlives the epoch: `run` returns only when all workers are
/// done.
type Job = *const (dyn Fn(usize) + Sync + 'static);

/// Value on its own cache lines, so that one side's writes do not disturb the other's polling.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

struct Shared {
    /// Goes up by one with every job; `STOP` ends the workers.
    epoch: Padded<AtomicU64>,
    /// Workers that have not finished the job.
    n_running: Padded<AtomicUsize>,
    job: Padded<UnsafeCell<Option<Job>>>,
    asleep: Vec<Padded<AtomicBool>>,
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether there are more threads than cores: spinning would take time from the thread that is waited
    /// for.
    oversubscribed: bool,
}

const STOP: u64 = u64::MAX;
/// Maximum number of ranges that items are divided into; with more threads, some threads share a range from
/// the start.
const MAX_RANGES: usize = 32;

// SAFETY: `job` is written by the one caller that holds `turn`, before the epoch's release store, and read by workers
// after its acquire load; the next write comes after all of them decremented `n_running`.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is to a `Sync` closure.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.epoch.0).finish_non_exhaustive()
    }
}

thread_local! {
    /// Whether this thread is inside a share of some run.
    static WORKING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Whether this thread has shared a run before: its time slices are those of a thread that computes.
    static COMPUTES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPool {
    /// A pool of `n_threads` (at least one, the caller being the first) on the machine's best ISA. The other
    /// threads are pinned to cores of their own if this process may use that many.
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::best())
    }

    /// Creates a pool with a chosen ISA, for tests and benchmarks.
    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        let n_workers = n_threads.max(1) - 1;
        let cores = affinity::Cores::allowed().logical;
        let oversubscribed = n_workers + 1 > cores.len();
        let shared = Arc::new(Shared {
            epoch: Padded::default(),
            n_running: Padded::default(),
            job: Padded(UnsafeCell::new(None)),
            asleep: (0..n_workers).map(|_| Padded::default()).collect(),
            caller_asleep: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            oversubscribed,
        });
        let workers = (0..n_workers)
            .map_while(|i| {
                let shared = shared.clone();
                let core = if oversubscribed { None } else { cores.get(i + 1).copied() };
                let work = move || {
                    if let Some(core) = core {
                        affinity::pin_to(core);
                    }
                    shared.work(i);
                };
                // If a thread cannot be started the pool is smaller, which changes no result.
                std::thread::Builder::new().name(format!("kernel-{}", i + 1)).spawn(work).ok()
            })
            .collect();
        Self { shared, workers, turn: Mutex::new(()), isa }
    }

    /// Number of threads that share a run, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The ISA that kernels on this pool use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `share(worker_idx)` once for every worker index below [`Self::n_threads`], each on its own
    /// thread, 0 on the caller's, and returns when all have returned. Calls from several threads take turns.
    ///
    /// # Panics
    /// When a share panics (after all shares ended), and when called from inside a share.
    pub fn run(&self, share: impl Fn(usize) + Sync) {
        assert!(!WORKING.get(), "a kernel share must not start another run");
        let _flush = FlushToZero::new();
        if self.workers.is_empty() {
            return run_share(&share, 0).unwrap_or_else(|panic| resume_unwind(panic));
        }
        let turn = lock(&self.turn);
        let mine = self.fork_and_join(&share);
        let theirs = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls `item(i)` once for every `i` below `n_items`. Each thread processes a range of its own in order,
    /// which keeps its memory accesses sequential; a thread that finishes early takes items from the others'
    /// ranges (work stealing). A single item runs on the caller without waking a worker.
    ///
    /// # Panics
    /// Panics of [`Self::run`].
    pub fn for_each(&self, n_items: usize, item: impl Fn(usize) + Sync) {
        let n_ranges = self.n_threads().min(MAX_RANGES);
        let first_of = |range: usize| range * n_items / n_ranges;
        let claimed = [const { Padded(AtomicUsize::new(0)) }; MAX_RANGES];
        let share = |worker_idx: usize| {
            for range in (0..n_ranges).map(|i| (worker_idx + i) % n_ranges) {
                let (first, end) = (first_of(range), first_of(range + 1));
                loop {
                    let i = first + claimed[range].0.fetch_add(1, Ordering::Relaxed);
                    if i >= end {
                        break;
                    }
                    item(i);
                }
            }
        };
        if n_items > 1 && !self.workers.is_empty() {
            return self.run(share);
        }
        self.run_here(|| (0..n_items).for_each(&item));
    }

    /// Runs on the caller's thread alone, in the pool's floating-point environment.
    pub fn run_here<T>(&self, work: impl FnOnce() -> T) -> T {
        let _flush = FlushToZero::new();
        work()
    }

    fn fork_and_join<'a>(&self, share: &'a (dyn Fn(usize) + Sync + 'a)) -> Result<(), Box<dyn Any + Send>> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; the pointer is used until this function has seen all workers finish.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + 'a), Job>(share) };
        // SAFETY: no worker reads the job between epochs (see `Shared`).
        unsafe { *shared.job.0.get() = Some(job) };
        shared.n_running.0.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.0.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake_sleepers();
        let mine = run_share(share, 0);
        shared.wait_for_workers();
        mine
    }

    fn wake_sleepers(&self) {
        for (asleep, worker) in self.shared.asleep.iter().zip(&self.workers) {
            if asleep.0.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.epoch.0.store(STOP, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panics were caught and handed on.
            let _ = worker.join();
        }
    }
}

/// Marks the thread as working, also when the share unwinds.
fn run_share(share: &(dyn Fn(usize) + Sync), idx: usize) -> Result<(), Box<dyn Any + Send>> {
    if !COMPUTES.replace(true) {
        priority::set_default_slice();
    }
    WORKING.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| share(idx)));
    WORKING.set(false);
    result
}

impl Shared {
    fn work(&self, idx: usize) {
        let _flush = FlushToZero::new();
        let mut seen = 0;
        loop {
            let epoch = self.next_epoch(idx, seen);
            if epoch == STOP {
                return;
            }
            seen = epoch;
            // SAFETY: the epoch's acquire load ordered this read after the write; the job lives until we are done.
            let job = unsafe { (*self.job.0.get()).map(|job| &*job) };
            if let Some(Err(panic)) = job.map(|job| run_share(job, idx + 1)) {
                lock(&self.panic).get_or_insert(panic);
            }
            if self.n_running.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                fence(Ordering::SeqCst);
                if self.caller_asleep.load(Ordering::Relaxed)
                    && let Some(caller) = lock(&self.caller).as_ref()
                {
                    caller.unpark();
                }
            }
        }
    }

    /// Waits until `arrived` holds: spins, then calls `sleep` until it does.
    fn spin_then(&self, arrived: impl Fn() -> bool, asleep: &AtomicBool) {
        let spinning = (!self.oversubscribed).then(Instant::now);
        let mut n_polls = 0u32;
        while !arrived() {
            n_polls += 1;
            let spin_on = spinning.is_some_and(|since| !n_polls.is_multiple_of(64) || since.elapsed() < SPIN);
            if spin_on {
                std::hint::spin_loop();
                continue;
            }
            // Announce, check again, then park: the other side writes first and reads the announcement afterwards.
            asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while !arrived() {
                std::thread::park();
            }
            asleep.store(false, Ordering::Relaxed);
        }
    }

    fn next_epoch(&self, idx: usize, seen: u64) -> u64 {
        let arrived = || self.epoch.0.load(Ordering::Acquire) != seen;
        self.spin_then(arrived, &self.asleep[idx].0);
        self.epoch.0.load(Ordering::Acquire)
    }

    fn wait_for_workers(&self) {
        let finished = || self.n_running.0.load(Ordering::Acquire) == 0;
        if finished() {
            return;
        }
        *lock(&self.caller) = Some(std::thread::current());
        self.spin_then(finished, &self.caller_asleep);
    }
}
