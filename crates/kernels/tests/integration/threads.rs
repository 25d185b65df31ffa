//! The thread pool: every worker runs each job once, panics reach the caller, idle workers wake up, and
//! dropping the pool joins the workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_kernels::threads::ThreadPool;

#[test]
fn every_worker_runs_each_job_once() {
    for n_threads in [1, 2, 3, 7] {
        let pool = ThreadPool::new(n_threads);
        let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..500 {
            pool.run(|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 500), "{counts:?}");
    }
}

#[test]
fn items_are_each_done_once() {
    let pool = ThreadPool::new(2);
    for n in [0, 1, 2, 1000] {
        let done: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
        pool.for_each(n, |i| {
            done[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    for (n_threads, guilty) in [(1, 0), (2, 0), (2, 1), (4, 3)] {
        let pool = ThreadPool::new(n_threads);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|i| assert!(i != guilty, "planted"));
        }));
        let message = *result.expect_err("a share panicked").downcast::<&str>().expect("its message");
        assert_eq!(message, "planted");
        let n = AtomicUsize::new(0);
        pool.run(|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.into_inner(), n_threads);
    }
}

#[test]
fn parked_workers_wake_up() {
    let pool = ThreadPool::new(2);
    let n = AtomicUsize::new(0);
    for _ in 0..20 {
        // Longer than a worker spins: the next job must wake it.
        std::thread::park_timeout(std::time::Duration::from_micros(300));
        pool.run(|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(n.into_inner(), 40);
}

#[test]
fn several_callers_take_turns() {
    let pool = ThreadPool::new(2);
    let n = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..200 {
                    pool.run(|_| {
                        n.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(n.into_inner(), 4 * 200 * 2);
}

#[test]
#[should_panic(expected = "must not start another run")]
fn a_nested_run_is_refused_instead_of_hanging() {
    let pool = ThreadPool::new(2);
    pool.run(|i| {
        if i == 0 {
            pool.run(|_| ());
        }
    });
}
