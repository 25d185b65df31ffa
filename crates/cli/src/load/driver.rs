//! Sends the requests of a workload when they are due, whether or not earlier ones were answered, and asks
//! the workload for the follow-up of an answer. The number of running requests is bounded.

use std::time::{Duration, Instant};

use anyhow::Result;
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::event_queue::EventQueue;
use throng_sim::workload::{EndedRequest, Span, TimedRequest, Workload};
use tokio::sync::mpsc;

use super::client::{Answered, LoadClient, now};
use super::outcome::{LoadReport, Outcomes};
use super::text::Texts;

/// Settings of a load.
#[derive(Debug, Clone)]
pub struct DriveOptions {
    /// Name of the load in the report.
    pub name: String,
    /// Objective of good answers.
    pub objective: Objective,
    /// Requests that are due earlier do not count.
    pub warm_up: Nanos,
    /// Maximum number of requests on their way at a time; others are not sent, and counted.
    pub max_in_flight: usize,
    /// Whether answers are parts of later prompts.
    pub keeps_answers: bool,
}

/// The end of a request.
struct Ended {
    tag: u64,
    output: Span,
    answer: Answered,
}

/// Runs a workload to its end.
///
/// # Errors
/// When the workload cannot be read.
pub async fn drive(
    client: &LoadClient,
    workload: &mut dyn Workload,
    options: &DriveOptions,
) -> Result<LoadReport> {
    let (tell, mut ended) = mpsc::channel::<Ended>(options.max_in_flight.max(1));
    let mut outcomes = Outcomes::new(options.objective, options.warm_up);
    let (mut texts, mut n_in_flight) = (Texts::default(), 0_usize);
    let mut follow_ups = EventQueue::default();
    let mut next = workload.next_request()?;
    let origin = Instant::now();
    loop {
        let next_at = next.as_ref().map(|timed| timed.at);
        let is_follow_up = follow_ups.next_at().is_some_and(|at| next_at.is_none_or(|next| at < next));
        let Some(at) = (if is_follow_up { follow_ups.next_at() } else { next_at }) else {
            if n_in_flight == 0 {
                return Ok(outcomes.finish(options.name.clone()));
            }
            if let Some(one) = ended.recv().await {
                n_in_flight -= 1;
                let follow_up = take(one, workload, &mut texts, &mut outcomes, options);
                follow_up.into_iter().for_each(|timed| follow_ups.push(timed.at, timed));
            }
            continue;
        };
        let wait = Duration::from_nanos(at.since(now(origin)).0);
        tokio::select! {
            biased;
            Some(one) = ended.recv() => {
                n_in_flight -= 1;
                let follow_up = take(one, workload, &mut texts, &mut outcomes, options);
                follow_up.into_iter().for_each(|timed| follow_ups.push(timed.at, timed));
            }
            () = tokio::time::sleep(wait) => {
                let due = if is_follow_up {
                    follow_ups.pop().map(|(_, timed)| timed)
                } else {
                    std::mem::replace(&mut next, workload.next_request()?)
                };
                let Some(timed) = due else { continue };
                if n_in_flight >= options.max_in_flight {
                    outcomes.not_sent(timed.at);
                    continue;
                }
                outcomes.sent_late(now(origin).since(timed.at));
                n_in_flight += 1;
                send(client, timed, &texts, origin, tell.clone());
            }
        }
    }
}

fn send(client: &LoadClient, timed: TimedRequest, texts: &Texts, origin: Instant, tell: mpsc::Sender<Ended>) {
    let (path, body) = client.body(&timed.request, texts);
    let client = client.clone();
    tokio::spawn(async move {
        let answer = client.send(path, body, origin, timed.at).await;
        let ended = Ended { tag: timed.tag, output: timed.request.output, answer };
        // An error would mean that nobody counts any more.
        let _ = tell.send(ended).await;
    });
}

/// Counts the end of a request and returns its follow-up.
fn take(
    ended: Ended,
    workload: &mut dyn Workload,
    texts: &mut Texts,
    outcomes: &mut Outcomes,
    options: &DriveOptions,
) -> Option<TimedRequest> {
    let Ended { tag, output, answer } = ended;
    outcomes.ended(&answer);
    let is_whole = answer.error.is_none();
    let (at, n_output) = (answer.end, answer.clock.n_tokens());
    if options.keeps_answers && is_whole {
        texts.remember(output, answer.text);
    }
    workload.follow_up(&EndedRequest { tag, at, n_output, is_whole })
}
