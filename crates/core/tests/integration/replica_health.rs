//! Replicas that fail, slow down, stall, drain, vanish and recover, in random schedules: whoever is out gets
//! nothing, probes are single, good ones come back by themselves, and planted bugs are found. A failing seed
//! prints the command that repeats it.

use std::collections::BTreeMap;

use fastrand::Rng;
use throng_core::fleet::health::{Board, Cause, HealthConfig, Probe, State};
use throng_core::fleet::routing::ReplicaId;
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::nightly::amount;

/// Mistakes that a user of the board could make, and that this test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A replica is chosen of all instead of those that may be.
    IgnoresStates,
    /// The end of a probe is not told.
    LostProbe,
    /// Failures are not told.
    SilentFailures,
    /// A drained replica is not told.
    ForgottenDrain,
    /// The clock of the caller stands still.
    NoTime,
    /// The end of a void probe is told as that of the one that runs.
    MistakenProbe,
}

const BUGS: [Bug; 6] = [
    Bug::IgnoresStates,
    Bug::LostProbe,
    Bug::SilentFailures,
    Bug::ForgottenDrain,
    Bug::NoTime,
    Bug::MistakenProbe,
];

/// What a replica really is, beside what the board believes.
#[derive(Debug, Clone, Copy, Default)]
struct Truth {
    fails: bool,
    is_draining: bool,
    n_failures_in_a_row: u32,
    /// The probe that counts.
    probe: Option<Probe>,
    /// Whether it came to the board or lost its connection and no probe has succeeded since.
    is_new: bool,
}

struct World {
    rng: Rng,
    bug: Option<Bug>,
    board: Board,
    truths: BTreeMap<ReplicaId, Truth>,
    /// All that have not ended, with those that are void.
    probes: Vec<Probe>,
    now: Timestamp,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut board = Board::new(HealthConfig::default());
        let now = Timestamp::default();
        let ids = (0..rng.u32(1..=5)).map(ReplicaId);
        let truths: BTreeMap<_, _> = ids.map(|id| (id, Truth { is_new: true, ..Truth::default() })).collect();
        truths.keys().for_each(|id| board.add(*id, now));
        Self { rng, bug, board, truths, probes: Vec::new(), now }
    }

    fn any(&mut self) -> ReplicaId {
        ReplicaId(self.rng.u32(..self.truths.len() as u32))
    }

    fn truth(&mut self, id: ReplicaId) -> &mut Truth {
        self.truths.get_mut(&id).expect("all ids are known")
    }

    /// A request comes and is tried at one of those that may be.
    fn request(&mut self) -> Result<(), String> {
        let mut eligible = self.board.eligible();
        if self.bug == Some(Bug::IgnoresStates) {
            eligible = self.truths.keys().copied().collect();
        }
        let n_ready = self.truths.keys().filter(|id| self.board.state(**id) == Some(State::Ready)).count();
        let Some(&id) = self.rng.choice(&eligible) else {
            return if n_ready == 0 { Ok(()) } else { Err("nobody may, but some are ready".into()) };
        };
        let (state, is_panicking) = (self.board.state(id).expect("known"), self.board.is_panicking());
        let may = state == State::Ready || state == State::Ejected && is_panicking;
        let truth = self.truths[&id];
        if !may || truth.is_draining || truth.is_new {
            return Err(format!("a request went to {id:?}, {state:?}: {truth:?}"));
        }
        let (now, was) = (self.now, Some(state));
        if truth.fails {
            if self.bug != Some(Bug::SilentFailures) {
                self.board.fail(id, now);
            }
            let truth = self.truth(id);
            truth.n_failures_in_a_row += 1;
            if truth.n_failures_in_a_row >= 5 && self.board.state(id) == Some(State::Ready) {
                return Err(format!("{id:?} failed five times and is ready"));
            }
        } else {
            let delay = Nanos::from_ms(self.rng.u64(10..30));
            self.board.succeed(id, Some(delay), now);
            self.truth(id).n_failures_in_a_row = 0;
        }
        self.note_ejection(id, was);
        Ok(())
    }

    fn begin_probes(&mut self) -> Result<(), String> {
        for probe in self.board.probes_due(self.now) {
            let id = probe.replica;
            let before = self.truth(id).probe.replace(probe);
            if before.is_some() {
                return Err(format!("{id:?} has two probes"));
            }
            self.probes.push(probe);
        }
        Ok(())
    }

    fn end_probe(&mut self) -> Result<(), String> {
        if self.probes.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..self.probes.len());
        let probe = self.probes.swap_remove(at);
        let id = probe.replica;
        let has_answered = !self.truths[&id].fails;
        let (counts, was) = (self.truths[&id].probe == Some(probe), self.board.state(id));
        if self.bug == Some(Bug::LostProbe) {
            return Ok(());
        }
        let told = match (self.bug, self.truths[&id].probe) {
            (Some(Bug::MistakenProbe), Some(running)) => running,
            _ => probe,
        };
        let delay = has_answered.then(|| Nanos::from_ms(self.rng.u64(1..30)));
        self.board.probed(told, delay, self.now);
        let state = self.board.state(id);
        if !counts && state != was {
            return Err(format!("a void probe made {id:?} {state:?}"));
        }
        if counts {
            self.truth(id).probe = None;
        }
        if counts && has_answered && state == Some(State::Ready) {
            *self.truth(id) = Truth { is_new: false, n_failures_in_a_row: 0, ..self.truths[&id] };
        }
        self.note_ejection(id, was);
        Ok(())
    }

    /// A probe that runs when its replica is ejected is void.
    fn note_ejection(&mut self, id: ReplicaId, was: Option<State>) {
        if self.board.state(id) == Some(State::Ejected) && was != Some(State::Ejected) {
            self.truth(id).probe = None;
        }
    }

    /// Connections are lost and come again, replicas begin to end, turn bad and good.
    fn change(&mut self) {
        let (id, now) = (self.any(), self.now);
        match self.rng.u8(..4) {
            0 => self.truth(id).fails ^= true,
            1 => {
                self.board.start_again(id, now);
                *self.truth(id) = Truth { is_new: true, fails: self.truths[&id].fails, ..Truth::default() };
            }
            2 => {
                if self.bug != Some(Bug::ForgottenDrain) {
                    self.board.drain(id);
                }
                (self.truth(id).is_draining, self.truth(id).probe) = (true, None);
            }
            _ => self.truth(id).fails = false,
        }
    }

    fn pass(&mut self, ms: u64) {
        if self.bug != Some(Bug::NoTime) {
            self.now = self.now + Nanos::from_ms(ms);
        }
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..80 {
            match self.rng.u8(..10) {
                0..5 => self.request()?,
                5..7 => self.begin_probes()?,
                7 => self.end_probe()?,
                8 => self.change(),
                _ => {
                    let ms = self.rng.u64(1..3_000);
                    self.pass(ms);
                }
            }
        }
        // All is well again: whoever does not drain is back within the longest ejection and a probe.
        self.truths.values_mut().for_each(|truth| truth.fails = false);
        for _ in 0..2 {
            self.pass(30_000);
            self.begin_probes()?;
            while !self.probes.is_empty() {
                self.end_probe()?;
            }
        }
        for (id, truth) in &self.truths {
            let state = self.board.state(*id).expect("known");
            let expected = if truth.is_draining { State::Draining } else { State::Ready };
            if state != expected {
                return Err(format!("{id:?} is well and {state:?}: {truth:?}"));
            }
        }
        Ok(())
    }
}

#[test]
fn whoever_is_out_gets_nothing_and_comes_back() {
    let only = std::env::var("THRONG_HEALTH_SEED").ok().map(|seed| seed.parse().expect("a number"));
    for seed in only.map_or(0..amount(10_000, 100_000), |seed: u64| seed..seed + 1) {
        if let Err(problem) = World::new(seed, None).run() {
            panic!(
                "seed {seed}: {problem}\nrerun: THRONG_HEALTH_SEED={seed} cargo test --workspace --test integration replica_health whoever"
            );
        }
    }
}

#[test]
fn planted_bugs_are_caught() {
    for bug in BUGS {
        let found = (0..1000).find_map(|seed| World::new(seed, Some(bug)).run().err());
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} was not found")));
    }
}

fn ms(ms: u64) -> Timestamp {
    Timestamp::default() + Nanos::from_ms(ms)
}

const ANSWERED: Option<Nanos> = Some(Nanos::from_ms(10));

fn replicas(probes: &[Probe]) -> Vec<ReplicaId> {
    probes.iter().map(|probe| probe.replica).collect()
}

/// A board with so many ready replicas.
fn ready(n: u32) -> (Board, Vec<ReplicaId>) {
    let mut board = Board::new(HealthConfig::default());
    let ids: Vec<_> = (0..n).map(ReplicaId).collect();
    for id in &ids {
        board.add(*id, ms(0));
    }
    let probes = board.probes_due(ms(0));
    assert!(board.eligible().is_empty() && replicas(&probes) == ids);
    probes.into_iter().for_each(|probe| board.probed(probe, ANSWERED, ms(0)));
    assert_eq!(board.eligible(), ids);
    (board, ids)
}

#[test]
fn the_slow_the_faulty_and_the_stalled_are_ejected() {
    let (mut board, ids) = ready(4);
    for n in 0..15 {
        for (idx, id) in ids.iter().enumerate() {
            let delay = if idx == 3 { 500 } else { 50 };
            board.succeed(*id, Some(Nanos::from_ms(delay)), ms(n));
        }
    }
    assert_eq!((board.state(ids[3]), board.cause(ids[3])), (Some(State::Ejected), Some(Cause::Slow)));
    for n in 0..100 {
        match n % 20 {
            0 => board.fail(ids[0], ms(100 + n)),
            _ => board.succeed(ids[0], None, ms(100 + n)),
        }
    }
    assert_eq!(board.cause(ids[0]), Some(Cause::FailureRate));
    for now in (300..=10_200).step_by(300) {
        board.heartbeat(ids[1], 7, true, ms(now));
    }
    assert_eq!(board.cause(ids[1]), None);
    board.heartbeat(ids[1], 7, true, ms(10_400));
    assert_eq!(board.cause(ids[1]), Some(Cause::Stalled));
    assert!(board.is_panicking() && board.eligible() == ids, "three of four are out");
    assert_eq!(board.n_ejections(), 3);
}

#[test]
fn ejections_double_and_are_forgiven() {
    let (mut board, ids) = ready(1);
    let mut now = 0;
    for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        (0..5).for_each(|_| board.fail(ids[0], ms(now)));
        assert_eq!(board.cause(ids[0]), Some(Cause::ConsecutiveFailures));
        assert!(board.probes_due(ms(now + wait - 1)).is_empty());
        now += wait;
        let probes = board.probes_due(ms(now));
        assert_eq!(replicas(&probes), ids);
        assert!(board.probes_due(ms(now)).is_empty(), "one probe at a time");
        board.probed(probes[0], ANSWERED, ms(now));
    }
    now += 30_000;
    (0..5).for_each(|_| board.fail(ids[0], ms(now)));
    assert!(replicas(&board.probes_due(ms(now + 1_000))) == ids);
}

#[test]
fn a_probe_from_before_the_ejection_brings_nobody_back() {
    let (mut board, ids) = ready(2);
    let early = board.probes_due(ms(10_000))[0];
    (0..5).for_each(|_| board.fail(ids[0], ms(10_000)));
    board.probed(early, ANSWERED, ms(10_100));
    assert_eq!(board.state(ids[0]), Some(State::Ejected));
    let due = board.probes_due(ms(11_000));
    board.probed(early, None, ms(11_000));
    board.probed(due[0], ANSWERED, ms(11_100));
    assert_eq!((replicas(&due), board.state(ids[0])), (vec![ids[0]], Some(State::Ready)));
}

#[test]
fn the_slow_stay_out_while_their_probes_are_slow() {
    let (mut board, ids) = ready(4);
    for n in 0..15 {
        for (idx, id) in ids.iter().enumerate() {
            let delay = if idx == 3 { 1_000 } else { 50 };
            board.succeed(*id, Some(Nanos::from_ms(delay)), ms(n));
        }
    }
    assert_eq!(board.cause(ids[3]), Some(Cause::Slow));
    let probe = board.probes_due(ms(2_000))[0];
    board.probed(probe, Some(Nanos::from_ms(200)), ms(2_200));
    assert_eq!((board.cause(ids[3]), board.n_ejections()), (Some(Cause::Slow), 2));
    // A probe without an answer does not hide why the replica is out, nor that it was slow.
    let probe = board.probes_due(ms(4_300))[0];
    board.probed(probe, None, ms(4_400));
    assert_eq!((board.cause(ids[3]), board.n_ejections()), (Some(Cause::Slow), 3));
    let probe = board.probes_due(ms(8_500))[0];
    board.probed(probe, Some(Nanos::from_ms(200)), ms(8_700));
    assert_eq!((board.cause(ids[3]), board.n_ejections()), (Some(Cause::Slow), 4));
    let probe = board.probe_due(ids[3], ms(17_000)).expect("it is due");
    board.probed(probe, Some(Nanos::from_ms(25)), ms(17_025));
    assert_eq!(board.state(ids[3]), Some(State::Ready));
}
