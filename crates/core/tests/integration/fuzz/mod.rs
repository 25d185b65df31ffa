//! Results do not depend on the schedule: whatever arrives, is cancelled, preempted, shared or fails, each request gets
//! the output of a reference without a cache, no block is leaked, and planted bugs are found. A failing seed prints the
//! command that repeats it.

mod ledger;
mod message;
mod requests;
mod saboteur;
mod states;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use saboteur::Bug;
use world::{Seen, World};

const N_SEEDS: u64 = 20;
/// The number of steps unless `THRONG_FUZZ_STEPS` is set.
const STEPS_PER_SEED: usize = 50_000;
/// After this many steps all requests are drained, no block may be left in use, and a new world begins.
const STEPS_PER_WORLD: usize = 2_500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn run_seed(seed: u64, bug: Option<Bug>) -> Result<Seen, String> {
    let n_steps = number("THRONG_FUZZ_STEPS").map_or(STEPS_PER_SEED, |n| n as usize);
    let (mut rng, mut seen) = (fastrand::Rng::with_seed(seed), Seen::default());
    while seen.steps < n_steps {
        seen.add(World::new(rng.fork(), bug).run(STEPS_PER_WORLD)?);
    }
    Ok(seen)
}

#[test]
fn results_do_not_depend_on_the_schedule() {
    let only = number("THRONG_FUZZ_SEED");
    let mut of_all = Seen::default();
    for seed in only.map_or(0..N_SEEDS, |seed| seed..seed + 1) {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_seed(seed, None)));
        let problem = match outcome {
            Ok(Ok(seen)) => {
                println!("seed {seed}: {seen:?}");
                of_all.add(seen);
                continue;
            }
            Ok(Err(problem)) => problem,
            Err(_) => "it panicked".to_owned(),
        };
        panic!(
            "seed {seed}: {problem}\nrerun: THRONG_FUZZ_SEED={seed} cargo test -p throng-core --test integration fuzz results"
        );
    }
    let is_whole = only.is_none() && number("THRONG_FUZZ_STEPS").is_none();
    assert!(!is_whole || of_all.least() > 200, "it saw too little: {of_all:?}");
}

/// Every planted bug makes one of two runs fail. A bug that is not found would show that the fuzz test is too weak.
#[test]
fn planted_bugs_are_caught() {
    for bug in Bug::ALL {
        let outcome =
            catch_unwind(AssertUnwindSafe(|| run_seed(7, Some(bug)).and_then(|_| run_seed(8, Some(bug)))));
        match outcome {
            Ok(Ok(_)) => panic!("{bug:?} was not caught"),
            Ok(Err(problem)) => println!("{bug:?}: {problem}"),
            Err(_) => println!("{bug:?}: an assertion in core failed"),
        }
    }
}
