//! Workers and a gateway as processes of their own, with the starter model: workers are killed and stopped while they stream, and
//! what clients read is, byte for byte, what they read undisturbed. `THRONG_KILLS` and `THRONG_STOPS` set the number of rounds
//! (`cargo xtask kill`), `THRONG_SEED` repeats a run.

#[path = "fleet/cases.rs"]
mod cases;
mod process;
#[path = "fleet/processes.rs"]
mod processes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use cases::{Case, Shown, cases};
use processes::Fleet;

const N_WORKERS: usize = 3;

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// What happens to a worker in the middle of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    /// Stopped for so long, then continued.
    Stop(Duration),
}

/// Rounds of one fault each, at a random token of a random stream. Prints what a client noticed at worst.
fn disturbed_rounds(fleet: &mut Fleet, n_rounds: u64, fault: impl Fn(&mut fastrand::Rng) -> Fault) {
    if n_rounds == 0 {
        return;
    }
    let seed = from_env("THRONG_SEED", fastrand::u64(..));
    println!("THRONG_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cases = cases();
    let expected: Vec<Shown> = cases.iter().map(|case| case.ask(fleet.url(), &|| {}).shown).collect();
    let mut pauses = Vec::new();
    for round in 0..n_rounds {
        if round % 100 == 99 {
            println!("round {}", round + 1);
        }
        let (victim, fault) = (random.usize(..N_WORKERS), fault(&mut random));
        let n_events: usize = expected.iter().flat_map(|shown| shown.values()).map(Vec::len).sum();
        let at_event = random.usize(..n_events);
        let answers = with_fault(fleet, &cases, at_event, victim, fault);
        for ((case, expected), answer) in cases.iter().zip(&expected).zip(answers) {
            let (shown, name) = (&answer.shown, case.name);
            let differing = expected.iter().find(|(index, events)| shown.get(index) != Some(events));
            let place = format!("{fault:?} of worker {victim} at event {at_event}: {name}");
            let differing = differing.map(|(index, events)| first_difference(shown.get(index), events));
            assert_eq!(differing, None, "THRONG_SEED={seed}, round {round}: {place}");
            assert_eq!(shown.len(), expected.len(), "THRONG_SEED={seed}, round {round}: {place}");
            pauses.push(answer.longest_pause);
        }
        fleet.mend(victim, fault == Fault::Kill);
    }
    pauses.sort_unstable();
    let at = |share: f64| pauses[((pauses.len() - 1) as f64 * share) as usize].as_millis();
    println!(
        "{n_rounds} rounds, {} streams, 0 failed; longest pause of a stream: median {} ms, p99 {} ms, worst {} ms",
        pauses.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// The first event that differs, as it came and as it was expected.
fn first_difference(shown: Option<&Vec<String>>, expected: &[String]) -> (Option<String>, Option<String>) {
    let shown = shown.map_or(&[][..], Vec::as_slice);
    let at = shown.iter().zip(expected).take_while(|(one, other)| one == other).count();
    (shown.get(at).cloned(), expected.get(at).cloned())
}

/// The answers of all cases at once, while the fault happens as soon as so many events have come.
fn with_fault(
    fleet: &Fleet,
    cases: &[Case],
    at_event: usize,
    victim: usize,
    fault: Fault,
) -> Vec<cases::Answer> {
    let n_events = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    let count = |tell: &mpsc::Sender<()>| {
        if n_events.fetch_add(1, Ordering::Relaxed) == at_event {
            let _ = tell.send(());
        }
    };
    std::thread::scope(|scope| {
        let asking: Vec<_> = cases
            .iter()
            .map(|case| {
                let tell = tell.clone();
                scope.spawn(move || case.ask(fleet.url(), &|| count(&tell)))
            })
            .collect();
        drop(tell);
        // An error: all answers have ended before.
        if told.recv().is_ok() {
            match fault {
                Fault::Kill => fleet.signal(victim, "KILL"),
                Fault::Stop(duration) => {
                    fleet.signal(victim, "STOP");
                    std::thread::sleep(duration);
                    fleet.signal(victim, "CONT");
                }
            }
        }
        asking.into_iter().map(|asking| asking.join().expect("no panic")).collect()
    })
}

#[test]
fn streams_outlive_their_workers() {
    let mut fleet = Fleet::start(N_WORKERS);
    disturbed_rounds(&mut fleet, from_env("THRONG_KILLS", 4), |_| Fault::Kill);
    disturbed_rounds(&mut fleet, from_env("THRONG_STOPS", 1), |random| {
        Fault::Stop(Duration::from_millis(random.u64(500..4000)))
    });
}

#[test]
fn a_gateway_waits_for_workers_and_says_so() {
    let mut fleet = Fleet::start_without_workers(1);
    let refused = fleet.get("/v1/models");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("model_not_ready"), "{refused}");
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
        let mut process = process::throng(arguments);
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
