//! The whole engine under a virtual clock: the core that serves, the paper executor, and everything that can
//! go wrong around them (steps that fail, panic or hang, executors that cannot be made, slow readers, aborts,
//! drains). Every request ends exactly once and with the tokens of the cache-free reference, every bound
//! holds, and planted bugs are found. A failing seed prints the line that reruns it.

mod ledger;
mod readers;
mod requests;
mod saboteur;
mod seen;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use saboteur::Bug;
use seen::Seen;
use throng_testkit::nightly::requested;
use world::World;

const N_SEEDS: u64 = 20;
/// Unless `THRONG_SIMULATION_INPUTS` asks for more.
const INPUTS_PER_SEED: usize = 50_000;
/// After this many inputs everything drains, nothing may be left, and another world begins.
const INPUTS_PER_WORLD: usize = 2_500;

fn run_seed(seed: u64, n_inputs: usize, bug: Option<Bug>) -> Result<Seen, String> {
    let (mut rng, mut seen) = (fastrand::Rng::with_seed(seed), Seen::default());
    while seen.inputs < n_inputs {
        seen.add(World::new(rng.fork(), bug).run(INPUTS_PER_WORLD)?);
    }
    Ok(seen)
}

/// Runs these seeds, or the one of them that `THRONG_SIMULATION_SEED` names.
fn run_seeds(seeds: impl Iterator<Item = u64>) {
    let n_inputs = requested("THRONG_SIMULATION_INPUTS").map_or(INPUTS_PER_SEED, |n| n as usize);
    let only = requested("THRONG_SIMULATION_SEED");
    let mut of_all = Seen::default();
    for seed in seeds.filter(|seed| only.is_none_or(|only| only == *seed)) {
        let problem = match catch_unwind(AssertUnwindSafe(|| run_seed(seed, n_inputs, None))) {
            Ok(Ok(seen)) => {
                println!("seed {seed}: {seen:?}");
                of_all.add(seen);
                continue;
            }
            Ok(Err(problem)) => problem,
            Err(_) => "it panicked".to_owned(),
        };
        panic!(
            "seed {seed}: {problem}\n\
             rerun: THRONG_SIMULATION_SEED={seed} cargo test -p throng-engine --test integration simulation seeds"
        );
    }
    let (what, n) = of_all.rarest();
    assert!(
        only.is_some() || n_inputs < INPUTS_PER_SEED || n >= 10,
        "it saw {what} only {n} times: {of_all:?}"
    );
}

// Two tests, so that two processors share the work.

#[test]
fn even_seeds_end_every_request_once_and_right() {
    run_seeds((0..N_SEEDS).step_by(2));
}

#[test]
fn odd_seeds_end_every_request_once_and_right() {
    run_seeds((1..N_SEEDS).step_by(2));
}

/// Every bug of the list makes the same run fail. A bug nobody can see would prove that the simulation proves
/// nothing.
#[test]
fn planted_bugs_are_caught() {
    for bug in Bug::ALL {
        match catch_unwind(AssertUnwindSafe(|| run_seed(7, INPUTS_PER_SEED, Some(bug)))) {
            Ok(Ok(_)) => panic!("{bug:?} was not caught"),
            Ok(Err(problem)) => println!("{bug:?}: {problem}"),
            Err(_) => println!("{bug:?}: an assertion in the engine or in core failed"),
        }
    }
}
