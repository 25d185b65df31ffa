//! Choices of replicas for attempts.

use throng_core::fleet::health::HealthConfig;
use throng_core::fleet::routing::{Policy, ReplicaId, Router};
use throng_core::fleet::{Demand, Dispatch};
use throng_core::time::{Nanos, Timestamp};

const NOW: Timestamp = Timestamp::from_ns(0);

fn dispatch() -> Dispatch {
    Dispatch::new(Router::new(Policy::default(), 0), HealthConfig::default())
}

fn demand(tried: &[ReplicaId]) -> Demand<'_> {
    Demand { n_tokens: 1, blocks: &[], session: None, pinned: None, regions: None, tried }
}

#[test]
fn replicas_are_asked_once_they_have_answered_a_probe() {
    let mut dispatch = dispatch();
    assert!(dispatch.place(&demand(&[]), NOW).is_none() && !dispatch.is_about_to_start(NOW));
    let id = dispatch.add("a", NOW);
    assert!(dispatch.place(&demand(&[]), NOW).is_none() && dispatch.is_about_to_start(NOW));
    let probe = dispatch.board.probe_due(id, NOW).expect("the first one is due at once");
    assert!(dispatch.is_about_to_start(NOW), "it runs");
    dispatch.board.probed(probe, None, NOW);
    assert!(!dispatch.is_about_to_start(NOW), "it failed; the next one is due later");
    let later = NOW + HealthConfig::default().ejection;
    let probe = dispatch.board.probe_due(id, later).expect("due");
    dispatch.board.probed(probe, Some(Nanos::from_ms(1)), later);
    let attempt = dispatch.place(&demand(&[]), later).expect("it is ready");
    assert!(attempt.was_ready && dispatch.n_running(id) == 1);
    assert!(dispatch.place(&demand(&[id]), later).is_none(), "it was tried");
    let elsewhere = Demand { pinned: Some("b"), ..demand(&[]) };
    assert!(dispatch.place(&elsewhere, later).is_none());
    dispatch.end(attempt);
    assert_eq!(dispatch.n_running(id), 0);
}

#[test]
fn those_that_answer_are_asked_whatever_their_health_where_none_is_fit() {
    let mut dispatch = dispatch();
    let [first, second] = ["a", "b"].map(|name| dispatch.add(name, NOW));
    let attempt = dispatch.place_answering(&demand(&[]), &[first], NOW).expect("it answers");
    assert_eq!((attempt.choice.replica, attempt.was_ready), (first, false));
    dispatch.board.be_ready(second, NOW);
    let attempt = dispatch.place_answering(&demand(&[]), &[first, second], NOW).expect("both answer");
    assert_eq!((attempt.choice.replica, attempt.was_ready), (second, true));
    dispatch.remove(second);
    assert!(dispatch.place(&demand(&[]), NOW).is_none());
    dispatch.end(attempt);
}

#[test]
fn retries_are_paid_by_requests() {
    let mut dispatch = dispatch();
    let n_first = (0..100).take_while(|_| dispatch.may_retry()).count();
    assert_eq!(n_first, 10, "retries before the first request");
    (0..10).for_each(|_| dispatch.request());
    assert!(dispatch.may_retry() && !dispatch.may_retry());
}
