//! Shares of a decode step's time.

use throng_cli::step_shares::StepShares;
use throng_core::time::{Nanos, Timestamp};
use throng_engine::StepRecord;

fn step(number: u64, n_sequences: u32) -> StepRecord {
    StepRecord {
        number,
        started: Timestamp::default() + Nanos::from_ms(50 * number),
        duration: Nanos::from_ms(48),
        planning: Nanos::from_ms(1),
        executing: Nanos::from_ms(46),
        choosing: Nanos::from_ms(6),
        n_arrivals: 0,
        n_sequences,
        n_sampled: n_sequences,
        n_tokens: n_sequences,
        n_attended: 100,
        n_waiting: 0,
        succeeded: true,
    }
}

#[test]
fn only_steps_in_which_all_users_decode_are_counted() {
    let prompt = StepRecord { n_tokens: 400, executing: Nanos::from_ms(900), ..step(0, 4) };
    let log = [prompt, step(1, 4), step(2, 4), step(3, 4), step(4, 3)];
    let shares = StepShares::of_decode(&log, 4).expect("there are two such steps");
    let expected = StepShares {
        step_ms: 50.0,
        planning_ms: 1.0,
        forward_ms: 40.0,
        choosing_ms: 6.0,
        handing_over_ms: 1.0,
        ending_ms: 2.0,
        not_forward_percent: 20.0,
    };
    assert!((shares.not_forward_percent - 20.0).abs() < 1e-9);
    assert_eq!(StepShares { not_forward_percent: 20.0, ..shares }, expected);
    assert_eq!(StepShares::of_decode(&log, 3), None);
}
