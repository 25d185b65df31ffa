//! Workers and a gateway as processes of their own, with the starter model: workers are killed and stopped
//! while they stream, and what clients read is, byte for byte, what they read undisturbed. `THRONG_KILLS`,
//! `THRONG_STOPS` and `THRONG_PARTITIONS` (of each fault of the network) set the number of rounds
//! (`cargo xtask kill`), `THRONG_SEED` repeats a run.

mod cases;
mod fault;
mod processes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use cases::{Answer, Case, Shown, cases};
use fault::{Fault, NetworkFault};
use processes::Fleet;

const N_WORKERS: usize = 3;

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Rounds of one fault each, at a random token of a random stream. Prints what a client noticed at worst.
fn disturbed_rounds(
    fleet: &mut Fleet,
    n_rounds: u64,
    what: &str,
    fault: impl Fn(&mut fastrand::Rng) -> Fault,
) {
    if n_rounds == 0 {
        return;
    }
    let seed = from_env("THRONG_SEED", fastrand::u64(..));
    println!("THRONG_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cases = cases();
    let expected: Vec<Shown> = cases.iter().map(|case| case.ask(fleet.url(), &|| {}).shown).collect();
    let n_events: usize = expected.iter().flat_map(|shown| shown.values()).map(Vec::len).sum();
    let (mut pauses, mut outs) = (Vec::new(), Vec::new());
    for round in 0..n_rounds {
        if round % 100 == 99 {
            println!("round {}", round + 1);
        }
        let (victim, fault) = (random.usize(..N_WORKERS), fault(&mut random));
        let at_event = random.usize(..n_events);
        let Disturbed { answers, out } = with_fault(fleet, &cases, at_event, victim, fault);
        let place =
            format!("THRONG_SEED={seed}, round {round}: {fault:?} of worker {victim} at event {at_event}");
        for (idx, answer) in answers.into_iter().enumerate() {
            let (case, expected) = (&cases[idx % cases.len()], &expected[idx % cases.len()]);
            assert_same(&answer.shown, expected, &format!("{place}: {}", case.name));
            pauses.push(answer.longest_pause);
        }
        outs.extend(out);
        fleet.mend(victim, fault == Fault::Kill);
        let again = cases[0].ask_of(fleet.url(), Some(&fleet.name(victim)), &|| {});
        assert_same(&again.shown, &expected[0], &format!("{place}: the worker itself afterwards"));
    }
    println!(
        "{n_rounds} rounds of {what}: {} streams, 0 failed; longest pause of a stream: {}",
        pauses.len(),
        summary(&mut pauses)
    );
    if !outs.is_empty() {
        println!("from the fault until the worker got no requests: {}", summary(&mut outs));
    }
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_millis();
    format!("median {} ms, p99 {} ms, worst {} ms", at(0.5), at(0.99), at(1.0))
}

fn assert_same(shown: &Shown, expected: &Shown, place: &str) {
    let differing = expected.iter().find(|(index, events)| shown.get(index) != Some(events));
    let differing = differing.map(|(index, events)| first_difference(shown.get(index), events));
    assert_eq!(differing, None, "{place}");
    assert_eq!(shown.len(), expected.len(), "{place}");
}

/// The first event that differs, as it came and as it was expected.
fn first_difference(shown: Option<&Vec<String>>, expected: &[String]) -> (Option<String>, Option<String>) {
    let shown = shown.map_or(&[][..], Vec::as_slice);
    let at = shown.iter().zip(expected).take_while(|(one, other)| one == other).count();
    (shown.get(at).cloned(), expected.get(at).cloned())
}

/// What came of a round.
struct Disturbed {
    /// Answers of all cases, twice where the cases were also asked during the fault.
    answers: Vec<Answer>,
    /// After so long the worker got no requests any more, if that was waited for.
    out: Option<Duration>,
}

/// The answers of all cases at once, while the fault happens as soon as so many events have come. Cases are
/// asked once more during faults of the network.
fn with_fault(fleet: &Fleet, cases: &[Case], at_event: usize, victim: usize, fault: Fault) -> Disturbed {
    let n_events = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    let count = |tell: &mpsc::Sender<()>| {
        if n_events.fetch_add(1, Ordering::Relaxed) == at_event {
            let _ = tell.send(());
        }
    };
    std::thread::scope(|scope| {
        let mut asking: Vec<_> = cases
            .iter()
            .map(|case| {
                let tell = tell.clone();
                scope.spawn(move || case.ask(fleet.url(), &|| count(&tell)))
            })
            .collect();
        drop(tell);
        let mut out = None;
        // An error: all answers have ended before.
        if told.recv().is_ok() {
            match fault {
                Fault::Kill => fleet.signal(victim, "KILL"),
                Fault::Stop(duration) => {
                    fleet.signal(victim, "STOP");
                    std::thread::sleep(duration);
                    fleet.signal(victim, "CONT");
                }
                Fault::Network(fault) => {
                    fault.begin(fleet.proxy(victim));
                    asking.extend(cases.iter().map(|case| scope.spawn(|| case.ask(fleet.url(), &|| {}))));
                    out = fault.ends_rotation().then(|| fleet.until_out(victim));
                }
            }
        }
        let answers = asking.into_iter().map(|asking| asking.join().expect("no panic")).collect();
        if let Fault::Network(_) = fault {
            fleet.proxy(victim).heal();
        }
        Disturbed { answers, out }
    })
}

#[test]
fn streams_outlive_their_workers() {
    let mut fleet = Fleet::start(N_WORKERS);
    disturbed_rounds(&mut fleet, from_env("THRONG_KILLS", 4), "kill -9", |_| Fault::Kill);
    disturbed_rounds(&mut fleet, from_env("THRONG_STOPS", 1), "SIGSTOP", |random| {
        Fault::Stop(Duration::from_millis(random.u64(500..4000)))
    });
}

/// A black hole, partitions, half-open and lost connections, a slow network: clients notice a pause at most,
/// and workers come back by themselves. What was held back arrives late, and none of it reaches a client
/// twice.
#[test]
fn streams_outlive_the_network() {
    let mut fleet = Fleet::start_behind_proxies(N_WORKERS);
    let n_rounds = from_env("THRONG_PARTITIONS", 1);
    for fault in NetworkFault::ALL {
        disturbed_rounds(&mut fleet, n_rounds, &format!("{fault:?}"), |_| Fault::Network(fault));
    }
}

/// The answers of all cases at once; `disturb` runs as soon as each of them has begun.
fn disturbed(fleet: &mut Fleet, cases: &[Case], disturb: impl FnOnce(&mut Fleet)) -> Vec<Answer> {
    let url = fleet.url().to_owned();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let ask = |case| {
            let (tell, url) = (tell.clone(), &url);
            scope.spawn(move || {
                let n_events = AtomicUsize::new(0);
                Case::ask(case, url, &|| {
                    if n_events.fetch_add(1, Ordering::Relaxed) == 1 {
                        let _ = tell.send(());
                    }
                })
            })
        };
        let asking: Vec<_> = cases.iter().map(ask).collect();
        cases.iter().for_each(|_| told.recv().expect("it begins"));
        disturb(fleet);
        asking.into_iter().map(|asking| asking.join().expect("no panic")).collect()
    })
}

/// The only worker is killed and started again at once; all workers are gone for two seconds.
#[test]
fn streams_wait_for_the_last_worker_to_come_back() {
    for (n_workers, pause_s) in [(1, 0), (1, 2), (2, 2)] {
        let mut fleet = Fleet::start(n_workers);
        let cases = cases();
        let expected: Vec<Shown> = cases.iter().map(|case| case.ask(fleet.url(), &|| {}).shown).collect();
        let answers = disturbed(&mut fleet, &cases, |fleet| fleet.restart_all(Duration::from_secs(pause_s)));
        for ((case, answer), expected) in cases.iter().zip(&answers).zip(&expected) {
            let place = format!("{n_workers} workers gone for {pause_s} s: {}", case.name);
            assert_same(&answer.shown, expected, &place);
        }
        let n_waits: usize = answers.iter().map(|answer| answer.n_waits).sum();
        println!("{n_workers} workers gone for {pause_s} s: {n_waits} comments");
        assert!(pause_s == 0 || n_waits > 0, "nothing says that streams wait");
    }
}

/// The only worker is told to end: it finishes what it runs, so that nothing waits, and ends well.
#[test]
fn the_only_worker_finishes_its_streams_before_it_ends() {
    let mut fleet = Fleet::start(1);
    let cases = cases();
    let expected: Vec<Shown> = cases.iter().map(|case| case.ask(fleet.url(), &|| {}).shown).collect();
    let answers = disturbed(&mut fleet, &cases, |fleet| fleet.signal(0, "TERM"));
    for ((case, answer), expected) in cases.iter().zip(&answers).zip(&expected) {
        assert_same(&answer.shown, expected, &format!("the worker ends: {}", case.name));
        assert_eq!(answer.n_waits, 0, "{}", case.name);
    }
    assert!(fleet.ended(0).success());
}

/// A gateway that did not run finds its timers expired and its sockets full: it reads before it judges, and
/// loses no worker.
#[test]
fn a_gateway_that_was_stopped_loses_no_worker() {
    let mut fleet = Fleet::start(2);
    let cases = cases();
    let expected: Vec<Shown> = cases.iter().map(|case| case.ask(fleet.url(), &|| {}).shown).collect();
    for round in 0..from_env("THRONG_GATEWAY_STOPS", 3) {
        let before = fleet.until_connected_s(1);
        let answers = disturbed(&mut fleet, &cases, |fleet| {
            fleet.signal_gateway("STOP");
            std::thread::sleep(Duration::from_secs(2));
            fleet.signal_gateway("CONT");
        });
        for ((case, answer), expected) in cases.iter().zip(&answers).zip(&expected) {
            assert_same(&answer.shown, expected, &format!("round {round}: {}", case.name));
        }
        let after = fleet.connected_s();
        assert!(
            before.iter().zip(&after).all(|(before, after)| after >= before),
            "{before:?}, then {after:?}"
        );
    }
}

#[test]
fn a_gateway_waits_for_workers_and_says_so() {
    let mut fleet = Fleet::start_without_workers(1);
    let refused = fleet.get("/v1/models");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("model_not_ready"), "{refused}");
    assert!(
        !refused.contains("loading") && refused.to_ascii_lowercase().contains("retry-after"),
        "{refused}"
    );
    assert!(fleet.get("/fleet").contains("\"state\":\"down\""));
    fleet.mend(0, true);
    let models = fleet.get("/v1/models");
    assert!(models.starts_with("HTTP/1.1 200 ") && models.contains("throng-starter"), "{models}");
    fleet.signal(0, "KILL");
    // The connection of a dead process is closed by its system at once.
    fleet.until("/health", "HTTP/1.1 503 ");
    let status = fleet.status();
    assert!(status.contains("down") && status.contains("throng-starter"), "{status}");
}

#[test]
fn workers_are_not_open_by_accident() {
    let run = |arguments: &[&str]| {
        let mut process = crate::process::throng(arguments);
        let output = process.output().expect("it ran");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = run(&["worker", "--listen", "0.0.0.0:0", "--threads", "1"]);
    assert!(code == Some(1) && told.contains("without a token"), "{told}");
    let (code, told) = run(&["gateway", "--replica", "ftp://127.0.0.1:1"]);
    assert!(code == Some(2) && told.contains("no address of a worker"), "{told}");
    let (code, told) = run(&["gateway", "--port", "0"]);
    assert!(code == Some(2) && told.contains("no replica is named"), "{told}");
}
