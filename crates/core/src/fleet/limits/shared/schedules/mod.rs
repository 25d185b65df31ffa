//! Tests of random schedules of gateways that share limits through a pool: messages are late, lost, or
//! arrive after their sender stopped waiting; gateways die; the pool is unreachable for a while and loses
//! its memory. All gateways together never exceed a limit, no request is refused that fits, and planted
//! bugs are found. A failing seed is printed.

mod checks;
mod faults;

use std::sync::Arc;

use fastrand::Rng;

use super::lease::Lease;
use super::*;
use crate::fleet::limits::limiter::{Limits, Reservation, Scope};
use crate::time::Timestamp;

const N_SCHEDULES: u64 = 60;
const N_STEPS: usize = 10_000;
const N_GATEWAYS: usize = 3;
const MINUTE: Nanos = Nanos(60_000_000_000);
const BUCKET: Nanos = Nanos(250_000_000);
const PATIENCE: Nanos = Nanos(250_000_000);
const TICK: Nanos = Nanos(50_000_000);
/// Time before a refusal in which other gateways may have returned usage.
const RECENTLY: Nanos = Nanos(600_000_000);

/// Bugs that the test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// Overtaken questions count.
    LateQuestionsCount,
    /// Shares of a lost gateway are granted at once.
    DeadGatewaysAreForgotten,
    /// A pool that has lost its memory grants shares at once.
    EmptyPoolGives,
    /// A gateway uses returned shares until the report reaches the pool.
    GivenBackAndUsed,
    /// A gateway without answers uses an equal part at once, without regard to the use of others.
    EqualPartAtOnce,
    /// Unused shares are never returned.
    NothingIsGivenBack,
}

const BUGS: [Bug; 6] = [
    Bug::LateQuestionsCount,
    Bug::DeadGatewaysAreForgotten,
    Bug::EmptyPoolGives,
    Bug::GivenBackAndUsed,
    Bug::EqualPartAtOnce,
    Bug::NothingIsGivenBack,
];

struct Waiting {
    scopes: Vec<usize>,
    n_tokens: u64,
    until: Timestamp,
}

struct Gateway {
    id: String,
    leases: Leases,
    /// The question in flight, its time of arrival, and the answer with its time once there is one.
    question: Option<(LeaseRequest, Timestamp)>,
    answer: Option<(LeaseRequest, LeaseReply, Timestamp)>,
    sent_at: Timestamp,
    waiting: Vec<Waiting>,
}

struct StartedRequest {
    at: Timestamp,
    gateway: String,
    scopes: Vec<usize>,
    n_tokens: u64,
    reservation: Option<Reservation>,
}

struct World {
    rng: Rng,
    bug: Option<Bug>,
    now: Timestamp,
    scopes: Vec<Scope>,
    gateways: Vec<Gateway>,
    n_made: usize,
    pool: Pool,
    /// Questions whose gateways have stopped waiting for the answer.
    late: Vec<(String, LeaseRequest, Timestamp)>,
    begun: Vec<StartedRequest>,
    away_until: Timestamp,
    /// Time since which no event has made refusals right for a while.
    calm_since: Timestamp,
    /// Requests that waited, ended or gave tokens back: the time and the number of tokens.
    moved: Vec<(Timestamp, u64)>,
    n_judged: usize,
    /// Last time at which a gateway without an answer of the pool used a scope that was unknown to the pool.
    blind_at: Timestamp,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let scopes = (0..2).map(|i| {
            let limits = Limits {
                requests_per_minute: rng.bool().then(|| rng.u64(10..200)),
                tokens_per_minute: Some(rng.u64(500..20_000)),
                concurrent_requests: rng.bool().then(|| rng.u64(6..30)),
            };
            Scope { name: Arc::from(format!("scope-{i}")), limits }
        });
        let scopes = scopes.collect();
        let now = Timestamp::from_ns(1_000_000_000_000);
        let (gateways, pool) = (Vec::new(), Pool::default());
        let (late, begun, moved) = Default::default();
        let mut world = Self {
            rng,
            bug,
            now,
            scopes,
            gateways,
            n_made: 0,
            pool,
            late,
            begun,
            away_until: now,
            calm_since: now,
            moved,
            n_judged: 0,
            blind_at: Timestamp::from_ns(0),
        };
        for _ in 0..N_GATEWAYS {
            let gateway = world.new_gateway();
            world.gateways.push(gateway);
        }
        world
    }

    fn new_gateway(&mut self) -> Gateway {
        self.n_made += 1;
        Gateway {
            id: format!("gateway-{}", self.n_made),
            leases: Leases::new(10, N_GATEWAYS as u64),
            question: None,
            answer: None,
            sent_at: self.now,
            waiting: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..N_STEPS {
            let is_away = self.now < self.away_until;
            let step_ms = if is_away { 300 } else { 8 };
            self.now = self.now + Nanos(self.rng.u64(..step_ms * 1_000_000));
            self.deliver();
            for i in 0..self.gateways.len() {
                self.turn(i)?;
            }
            match self.rng.u16(..2_000) {
                0..300 => self.request()?,
                300..500 => self.end_one(),
                500 if !is_away => self.leave_for(1_000),
                501 if !is_away && self.rng.bool() => self.leave_for(150_000),
                502 if !is_away => self.flush(),
                503 if !is_away && self.rng.u8(..4) == 0 => self.kill(),
                504..509 => self.pass_quietly()?,
                _ => {}
            }
            let from = self.now - MINUTE - MINUTE;
            self.begun.retain(|begun| begun.at > from || begun.reservation.is_some());
            let recent = self.now - RECENTLY;
            self.moved.retain(|(at, _)| *at > recent);
        }
        Ok(())
    }

    /// Lets time pass until a burst has left the minute.
    fn pass_quietly(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.usize(..200) {
            self.now = self.now + Nanos(200_000_000);
            self.calm_since = self.calm_since.max(self.now);
            self.deliver();
            for i in 0..self.gateways.len() {
                self.turn(i)?;
            }
        }
        Ok(())
    }

    /// Delivers the questions that no gateway waits for any more.
    fn deliver(&mut self) {
        if self.now < self.away_until {
            return;
        }
        let (here, late): (Vec<_>, _) =
            std::mem::take(&mut self.late).into_iter().partition(|(_, _, at)| *at <= self.now);
        self.late = late;
        for (id, ask, _) in here {
            let _ = self.exchange(&id, ask);
        }
    }

    fn exchange(&mut self, id: &str, mut ask: LeaseRequest) -> Option<LeaseReply> {
        if self.bug == Some(Bug::LateQuestionsCount) {
            ask.number = self.now.as_ns();
        }
        if self.bug == Some(Bug::NothingIsGivenBack) {
            ask.entries.retain(|entry| !entry.yields || entry.need != [0; 3]);
        }
        self.pool.exchange(id, &ask, self.now.as_ns() / 1_000_000)
    }

    /// Runs a gateway: it sends and receives, and its waiting requests are tried again.
    fn turn(&mut self, i: usize) -> Result<(), String> {
        let is_away = self.now < self.away_until;
        if let Some((ask, at)) = self.gateways[i].question.take_if(|(_, at)| *at <= self.now && !is_away) {
            let id = self.gateways[i].id.clone();
            if let Some(told) = self.exchange(&id, ask.clone()) {
                let delay = self.delay();
                self.gateways[i].answer = Some((ask, told, self.now.max(at) + delay));
            }
        }
        let now = self.now;
        let gateway = &mut self.gateways[i];
        let mut has_news = false;
        if let Some((mut ask, told, _)) = gateway.answer.take_if(|(_, _, at)| *at <= now) {
            if self.bug == Some(Bug::NothingIsGivenBack) {
                ask.entries.retain(|entry| !entry.yields || entry.need != [0; 3]);
            }
            gateway.leases.told(&ask, &told, now);
            gateway.sent_at = now;
            has_news = true;
        }
        let is_waiting = gateway.question.is_some() || gateway.answer.is_some();
        if is_waiting && now.since(gateway.sent_at) > PATIENCE {
            gateway.leases.not_told();
            gateway.answer = None;
            let question = gateway.question.take();
            gateway.sent_at = now;
            has_news = true;
            if let Some((ask, at)) = question {
                let delay = self.rng.u64(..2_000_000_000);
                self.late.push((self.gateways[i].id.clone(), ask, at + Nanos(delay)));
            }
            self.calm_since = self.calm_since.max(now);
        } else if !is_waiting && (gateway.leases.is_needed() || now.since(gateway.sent_at) >= TICK) {
            self.send(i);
        }
        if has_news { self.look_after_waiting(i) } else { Ok(()) }
    }

    fn send(&mut self, i: usize) {
        let (delay, now) = (self.delay(), self.now);
        let gateway = &mut self.gateways[i];
        let before = gateway.leases.clone();
        let ask = gateway.leases.ask(now);
        if self.bug == Some(Bug::GivenBackAndUsed) {
            let asked = std::mem::replace(&mut gateway.leases, before);
            gateway.leases.number = asked.number;
            gateway.leases.sent_at = asked.sent_at;
        }
        gateway.sent_at = now;
        gateway.question = Some((ask, now + delay));
    }

    /// Random delay: mostly short, sometimes longer than a gateway waits.
    fn delay(&mut self) -> Nanos {
        if self.rng.u16(..2_000) > 0 {
            return Nanos(self.rng.u64(..5_000_000));
        }
        self.calm_since = self.calm_since.max(self.now + PATIENCE);
        Nanos(self.rng.u64(..600_000_000))
    }

    fn request(&mut self) -> Result<(), String> {
        let mut asked: Vec<usize> = (0..self.scopes.len()).collect();
        self.rng.shuffle(&mut asked);
        asked.truncate(self.rng.usize(1..=self.scopes.len()));
        let n_tokens = if self.rng.u8(..20) == 0 { self.rng.u64(..5_000) } else { self.rng.u64(..300) };
        // Most of the load is on one gateway.
        let i = if self.rng.bool() { 0 } else { self.rng.usize(..self.gateways.len()) };
        let until = self.now + PATIENCE;
        self.gateways[i].waiting.push(Waiting { scopes: asked, n_tokens, until });
        self.look_after_waiting(i)
    }

    fn look_after_waiting(&mut self, i: usize) -> Result<(), String> {
        for waiting in std::mem::take(&mut self.gateways[i].waiting) {
            let scopes: Vec<Scope> = waiting.scopes.iter().map(|&i| self.scopes[i].clone()).collect();
            let standing = &mut self.gateways[i].leases.standing;
            if self.bug == Some(Bug::EqualPartAtOnce) && !standing.is_answered {
                standing.heard_at = None;
            }
            let gateway = &mut self.gateways[i];
            let is_answered = gateway.leases.is_answered();
            match gateway.leases.reserve(&scopes, waiting.n_tokens, self.now) {
                Ok(reservation) => {
                    let Waiting { scopes, n_tokens, .. } = waiting;
                    let (at, gateway) = (self.now, gateway.id.clone());
                    let is_known = |&i: &usize| self.lease_of(&gateway, i).is_some_and(Lease::is_known);
                    if !scopes.iter().all(is_known) {
                        self.blind_at = self.now;
                    }
                    self.check_limits(&scopes, n_tokens)?;
                    self.begun.push(StartedRequest {
                        at,
                        gateway,
                        scopes,
                        n_tokens,
                        reservation: Some(reservation),
                    });
                }
                Err(Undecided::LeaseRequest(_)) if self.now < waiting.until => {
                    self.moved.push((self.now, waiting.n_tokens));
                    gateway.waiting.push(waiting);
                }
                Err(Undecided::LeaseRequest(refusal) | Undecided::Refused(refusal)) if is_answered => {
                    self.judge(&waiting, refusal)?;
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn end_one(&mut self) {
        let running: Vec<usize> =
            (0..self.begun.len()).filter(|&i| self.begun[i].reservation.is_some()).collect();
        let Some(&i) = self.rng.choice(&running) else { return };
        let begun = &mut self.begun[i];
        let Some(reservation) = begun.reservation.take() else { return };
        let Some(gateway) = self.gateways.iter_mut().find(|gateway| gateway.id == begun.gateway) else {
            return;
        };
        let n_used = self.rng.u64(..=begun.n_tokens);
        gateway.leases.settle(reservation, n_used, self.now);
        self.moved.push((self.now, begun.n_tokens - n_used));
        begun.n_tokens = n_used;
    }
}

fn world(seed: u64, bug: Option<Bug>) -> Result<usize, String> {
    let mut world = World::new(seed, bug);
    world.run()?;
    Ok(world.n_judged)
}

#[test]
fn gateways_together_keep_every_limit_and_refuse_nothing_that_fits() {
    let mut n_judged = 0;
    for seed in 0..N_SCHEDULES {
        match world(seed, None) {
            Ok(n) => n_judged += n,
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
    assert!(n_judged > 1_000, "{n_judged} refusals are too few to judge");
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let found = (0..N_SCHEDULES).any(|seed| world(seed, Some(bug)).is_err());
        assert!(found, "{bug:?} is not found in {N_SCHEDULES} schedules");
    }
}
