//! Continuation of a request on another replica.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::replica::{ResumedContinuation, StreamEvent, Timing, TokenReport};
use throng_core::fleet::routing::{Policy, PrefixIndex, ReplicaId, Router};
use throng_core::fleet::{Failover, Retry, Tried};
use throng_core::request::{FinishReason, SamplingParams, TokenId};
use throng_core::scheduling::batch::TokenLogprob;

type Event = StreamEvent<()>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn replicas<const N: usize>() -> [ReplicaId; N] {
    let mut router = Router::new(Policy::default(), 0);
    [(); N].map(|()| router.add("replica", PrefixIndex::Inferred, 0))
}

fn prompt() -> Event {
    StreamEvent::Prompt { cached_tokens: 0, logprobs: Vec::new() }
}

fn token(index: u32, token: TokenId) -> Event {
    let chosen = TokenLogprob { token, logprob: 0.0, rank: 0 };
    StreamEvent::Token { index, report: TokenReport { chosen, top: Vec::new() } }
}

fn finished(index: u32, timing: Timing) -> Event {
    StreamEvent::Finished { index, reason: FinishReason::Length, timing }
}

/// A request of two continuations that a replica has taken in.
fn begun(replica: ReplicaId) -> Failover {
    let mut tried = Tried::default();
    tried.ask(replica);
    Failover::new(2, tried)
}

#[test]
fn the_rest_is_what_has_not_ended_behind_what_was_passed_on() {
    let [first] = replicas();
    let mut request = begun(first);
    let sampling = Arc::new(SamplingParams { prompt_logprobs: Some(1), ..SamplingParams::default() });
    assert_eq!(request.rest(&sampling), None, "nothing was reported");
    for event in [prompt(), token(0, 7), token(1, 8), token(0, 9), finished(1, Timing::default())] {
        assert!(request.note(event, ms(1)).is_some());
    }
    request.abort(0);
    request.abort(1);
    assert_eq!(request.failed(first, true, ms(5)), Retry::Free);
    let rest = request.rest(&sampling).expect("the prompt was reported");
    assert_eq!(rest.continuations, [ResumedContinuation { index: 0, output: [7, 9].into() }]);
    assert_eq!((rest.sampling.prompt_logprobs, request.n_output()), (None, 3));
    assert_eq!(request.aborted().collect::<Vec<_>>(), [0], "1 has ended");
    // The next replica reports neither the prompt nor what has ended again.
    assert!(request.note(prompt(), ms(6)).is_none() && request.note(token(1, 1), ms(6)).is_none());
    assert!(!request.has_ended() && request.note(token(2, 1), ms(6)).is_none());
    let timing = Timing { first_token: Some(ms(1)), last_token: Some(ms(2)), ..Timing::default() };
    let Some(StreamEvent::Finished { timing, .. }) = request.note(finished(0, timing), ms(9)) else {
        panic!("the last continuation ends");
    };
    assert_eq!((timing.first_token, timing.last_token), (Some(ms(1)), Some(ms(7))));
    assert!(request.has_ended());
}

#[test]
fn a_failure_before_the_first_token_is_a_retry_unless_the_process_has_ended() {
    let [first, second, third] = replicas();
    let mut request = begun(first);
    assert_eq!(request.failed(first, false, ms(1)), Retry::Paid);
    let mut tried = request.take_tried();
    assert!(tried.all().contains(&first), "it is not asked again");
    tried.ask(second);
    request.set_tried(tried);
    assert_eq!(request.failed(second, true, ms(2)), Retry::Free);
    assert!(!request.may_wait(true, false, false) && request.may_wait(true, false, true));
    let mut tried = request.take_tried();
    tried.ask(third);
    assert!(!tried.may_ask(), "three replicas were tried");
    request.set_tried(tried);
    assert!(request.note(token(0, 1), ms(3)).is_some());
    assert_eq!(request.failed(third, false, ms(4)), Retry::Free, "it got on there");
    assert!(request.may_wait(true, false, false) && !request.may_wait(true, true, true));
}

#[test]
fn replicas_that_end_after_a_token_are_outlived_a_bounded_number_of_times() {
    let [first] = replicas();
    let mut request = begun(first);
    for number in 0.. {
        assert!(number < 100);
        assert!(request.note(token(0, 1), ms(number)).is_some());
        assert_eq!(request.failed(first, true, ms(number)), Retry::Free);
        let mut tried = request.take_tried();
        if !tried.may_ask() {
            assert!(number >= 16, "bounded, and not too soon");
            return;
        }
        tried.ask(first);
        request.set_tried(tried);
    }
}
