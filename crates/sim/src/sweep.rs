//! Several independent runs on several threads, with results in the order of the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `job` for each of `inputs` on at most `n_threads` threads.
pub fn run<I: Sync, O: Send>(inputs: &[I], n_threads: usize, job: impl Fn(&I) -> O + Sync) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let outputs: Vec<Mutex<Option<O>>> = inputs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(index) else { return };
            let output = job(input);
            *outputs[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, inputs.len().max(1)) {
            scope.spawn(work);
        }
    });
    outputs.into_iter().filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_inputs() {
        let inputs: Vec<u32> = (0..100).collect();
        for n_threads in [0, 1, 7, 200] {
            assert_eq!(
                run(&inputs, n_threads, |input| input * 2),
                inputs.iter().map(|n| n * 2).collect::<Vec<_>>()
            );
        }
        assert!(run(&[], 3, |input: &u32| *input).is_empty());
    }
}
