//! Ranks that end in the middle of work: the step fails with a typed error.

use std::path::Path;
use std::sync::Arc;

use throng_comm::shared::SharedHost;
use throng_comm::{Communicator, Deadline};
use throng_core::request::SamplingParams;
use throng_core::scheduling::executor::ExecutorError;
use throng_kernels::threads::ThreadPool;
use throng_model::parallel::{Grid, Leader};
use throng_model::{BackendKind, RunnerOptions};

use super::{PATIENCE, links, open_folder, part_of};
use crate::harness::{LIMITS, OneSequence};

#[test]
fn a_step_fails_when_a_rank_has_ended() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    let open = || open_folder(&folder);
    for grid in [Grid { n_ranks: 2, n_stages: 1 }, Grid { n_ranks: 1, n_stages: 2 }] {
        let host = SharedHost::create(2, &grid.groups()).expect("there is memory");
        let other = host.join(1).expect("a thread");
        let membership = host.join(0).expect("a thread");
        let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits: LIMITS };
        let part = part_of(&open, grid, 0).expect("it is divided");
        let runner = part.rank_runner(&Arc::new(ThreadPool::new(1)), &options, links(&membership, grid, 0));
        let all: Box<dyn Communicator> = Box::new(membership.all());
        let mut leader = Leader::new(runner.expect("it fits"), all, PATIENCE, Box::new(membership));
        // It receives the step, and ends.
        let ending = std::thread::spawn(move || {
            let message = other.all().receive_message(0, 1 << 20, Deadline::within(PATIENCE));
            assert!(message.is_ok_and(|message| !message.is_empty()));
        });
        let mut sequence = OneSequence::new(&[1, 2, 3], Arc::new(SamplingParams::default()));
        let failed = sequence.try_step(&mut leader, 3).expect_err("a rank is lost");
        assert!(matches!(&failed, ExecutorError::PeerLost(lost) if lost.contains("rank 1")), "{failed}");
        ending.join().expect("no panic");
    }
}
