//! Results do not depend on the schedule: whatever arrives, is cancelled, preempted, shared or fails, each
//! request gets the output of a reference without a cache, no block is leaked, and planted bugs are found. A
//! failing seed prints the command that repeats it.

mod ledger;
mod message;
mod pictures;
mod requests;
mod saboteur;
mod states;
pub mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use saboteur::Bug;
use throng_testkit::nightly::{amount, requested};
use world::{Seen, World};

const N_SEEDS: u64 = 20;
/// The number of steps within which a planted bug must be found.
const STEPS_PER_BUG: usize = 50_000;
/// After this many steps all requests are drained, no block may be left in use, and a new world begins.
const STEPS_PER_WORLD: usize = 2_500;

fn run_seed(seed: u64, n_steps: usize, bug: Option<Bug>) -> Result<Seen, String> {
    let (mut rng, mut seen) = (fastrand::Rng::with_seed(seed), Seen::default());
    while seen.steps < n_steps {
        seen.add(World::new(rng.fork(), bug).run(STEPS_PER_WORLD)?);
    }
    Ok(seen)
}

#[test]
fn results_do_not_depend_on_the_schedule() {
    let only = requested("THRONG_FUZZ_SEED");
    let n_usual = amount(15_000, 50_000);
    let n_steps = requested("THRONG_FUZZ_STEPS").map_or(n_usual, |n| n as usize);
    let mut of_all = Seen::default();
    for seed in only.map_or(0..N_SEEDS, |seed| seed..seed + 1) {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_seed(seed, n_steps, None)));
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
            "seed {seed}: {problem}\nrerun: THRONG_FUZZ_SEED={seed} THRONG_FUZZ_STEPS={n_steps} cargo test -p throng-core --test integration fuzz results"
        );
    }
    let is_whole = only.is_none() && n_steps >= n_usual;
    assert!(!is_whole || of_all.least() > n_usual / 250, "it saw too little: {of_all:?}");
}

/// Seeds of the runs with a planted bug. In the last one a block is loaded and asked for in the same step.
const BUG_SEEDS: [u64; 9] = [7, 8, 39, 1, 2, 3, 4, 5, 6];

/// Every planted bug makes one of a few runs fail. A bug that is not found would show that the fuzz test is
/// too weak.
#[test]
fn planted_bugs_are_caught() {
    for bug in Bug::ALL {
        let run = |seed| {
            let outcome = run_seed(seed, STEPS_PER_BUG, Some(bug));
            outcome.map(drop).map_err(|problem| format!("seed {seed}: {problem}"))
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| BUG_SEEDS.into_iter().try_for_each(run)));
        match outcome {
            Ok(Ok(_)) => panic!("{bug:?} was not caught"),
            Ok(Err(problem)) => println!("{bug:?}: {problem}"),
            Err(_) => println!("{bug:?}: an assertion in core failed"),
        }
    }
}
