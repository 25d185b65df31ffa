//! Tests of random schedules against a plain list of uses: no minute has more than its limits, no request
//! is refused that fits, waits are exact, and planted bugs are found. A failing seed is printed.

use std::sync::Arc;

use fastrand::Rng;

use super::window::BucketId;
use super::*;
use crate::time::{Nanos, Timestamp};

const N_SCHEDULES: u64 = 3_000;
const N_STEPS: usize = 200;
const MINUTE: Nanos = Nanos(60_000_000_000);
const BUCKET: Nanos = Nanos(250_000_000);

/// Bugs that the test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// Tokens are returned to the present instead of to the time of the charge.
    RefundToPresent,
    /// Refunds of expired entries count once more, for the oldest time that still counts.
    RefundOfExpired,
    /// Keeps unused tokens charged.
    ForgottenRefund,
    /// Two requests are checked before one is charged.
    CheckThenReserve,
    /// A use counts a quarter of a second too short.
    ShortWindow,
    /// Charges only the first scope.
    FirstScopeOnly,
    /// A request that has ended counts as running.
    LeakedRequest,
    /// Usage beyond a reservation is not charged.
    ForgivenExcess,
}

const BUGS: [Bug; 8] = [
    Bug::RefundToPresent,
    Bug::RefundOfExpired,
    Bug::ForgottenRefund,
    Bug::CheckThenReserve,
    Bug::ShortWindow,
    Bug::FirstScopeOnly,
    Bug::LeakedRequest,
    Bug::ForgivenExcess,
];

/// A request in the plain list.
struct StartedRequest {
    at: Timestamp,
    scopes: Vec<usize>,
    /// Tokens charged for it: the most that it can use, or after its end its use.
    n_tokens: u64,
    /// Whether the entry is usage beyond a reservation, which counts from the time of its charge.
    is_excess: bool,
    reservation: Option<Reservation>,
}

struct World {
    rng: Rng,
    bug: Option<Bug>,
    limiter: Limiter,
    scopes: Vec<Scope>,
    begun: Vec<StartedRequest>,
    now: Timestamp,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits = |rng: &mut Rng| Limits {
            requests_per_minute: rng.bool().then(|| rng.u64(1..20)),
            tokens_per_minute: (rng.u8(..4) > 0).then(|| rng.u64(1..1000)),
            concurrent_requests: rng.bool().then(|| rng.u64(1..6)),
        };
        let scopes = (0..3)
            .map(|i| Scope { name: Arc::from(format!("scope-{i}")), limits: limits(&mut rng) })
            .collect();
        Self { rng, bug, limiter: Limiter::new(3), scopes, begun: Vec::new(), now: Timestamp::from_ns(0) }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..N_STEPS {
            match self.rng.u8(..10) {
                0..5 => self.request()?,
                5..8 => self.end_one(),
                8 if self.rng.bool() => self.pass(3_000),
                8 => self.pass_to_end_of_minute(),
                _ => self.pass(40_000),
            }
            self.check_minute()?;
        }
        Ok(())
    }

    /// Lets a random time of less than `ms` pass.
    fn pass(&mut self, ms: u64) {
        self.now = self.now + Nanos(self.rng.u64(..ms * 1_000_000));
    }

    /// Moves the clock to almost a minute after a request.
    fn pass_to_end_of_minute(&mut self) {
        let Some(begun) = self.rng.choice(&self.begun) else { return };
        let time = begun.at + MINUTE - Nanos(self.rng.u64(1..BUCKET.0));
        self.now = self.now.max(time);
    }

    fn request(&mut self) -> Result<(), String> {
        let mut asked: Vec<usize> = (0..self.scopes.len()).collect();
        self.rng.shuffle(&mut asked);
        asked.truncate(self.rng.usize(1..=self.scopes.len()));
        let n_tokens = self.rng.u64(..300);
        let scopes: Vec<Scope> = asked.iter().map(|&i| self.scopes[i].clone()).collect();
        if self.bug == Some(Bug::ShortWindow) {
            let now = self.limiter.now;
            let _ = self.limiter.status(&scopes, self.now + BUCKET);
            self.limiter.now = now;
        }
        let mut before = self.limiter.clone();
        let reserved = self.limiter.reserve(&scopes, n_tokens, self.now);
        self.judge(&asked, n_tokens, reserved.as_ref().err())?;
        match reserved {
            Err(refusal) => self.check_wait(&scopes, n_tokens, refusal),
            Ok(reservation) => {
                self.begin(asked.clone(), n_tokens, reservation);
                self.check_tokens(&asked)?;
                if self.bug == Some(Bug::CheckThenReserve)
                    && before.reserve(&scopes, n_tokens, self.now).is_ok()
                {
                    let unlimited = |scope: &Scope| Scope { limits: Limits::default(), ..scope.clone() };
                    let unlimited: Vec<Scope> = scopes.iter().map(unlimited).collect();
                    let second = self.limiter.reserve(&unlimited, n_tokens, self.now);
                    self.begin(asked, n_tokens, second.map_err(|refusal| format!("{refusal:?}"))?);
                }
                Ok(())
            }
        }
    }

    fn begin(&mut self, scopes: Vec<usize>, n_tokens: u64, mut reservation: Reservation) {
        if self.bug == Some(Bug::FirstScopeOnly) {
            let others = reservation.scopes.split_off(1);
            let (bucket, n_tokens) = (reservation.bucket, reservation.n_tokens);
            self.limiter.cancel(Reservation { scopes: others, bucket, n_tokens });
        }
        let reservation = Some(reservation);
        self.begun.push(StartedRequest { at: self.now, scopes, n_tokens, is_excess: false, reservation });
    }

    fn end_one(&mut self) {
        let running: Vec<usize> =
            (0..self.begun.len()).filter(|&i| self.begun[i].reservation.is_some()).collect();
        let Some(&i) = self.rng.choice(&running) else { return };
        let begun = &mut self.begun[i];
        let Some(mut reservation) = begun.reservation.take() else { return };
        let n_used = self.rng.u64(..=begun.n_tokens);
        if self.rng.u8(..8) == 0 {
            let (n_excess, n_reserved, scopes) = (self.rng.u64(1..200), begun.n_tokens, begun.scopes.clone());
            let n_charged = if self.bug == Some(Bug::ForgivenExcess) { 0 } else { n_excess };
            self.limiter.settle(reservation, n_reserved + n_charged, self.now);
            let excess = StartedRequest {
                at: self.now,
                scopes,
                n_tokens: n_excess,
                is_excess: true,
                reservation: None,
            };
            self.begun.push(excess);
            return;
        }
        match self.bug {
            Some(Bug::RefundToPresent) => reservation.bucket = self.limiter.now,
            Some(Bug::RefundOfExpired) => {
                reservation.bucket = reservation.bucket.max(BucketId::at(self.now - MINUTE + BUCKET));
            }
            Some(Bug::ForgottenRefund) => {
                self.limiter.settle(reservation, begun.n_tokens, self.now);
                begun.n_tokens = n_used;
                return;
            }
            Some(Bug::LeakedRequest) => {
                begun.n_tokens = n_used;
                return;
            }
            _ => {}
        }
        if self.rng.u8(..5) == 0 {
            self.limiter.cancel(reservation);
            self.begun.remove(i);
        } else {
            self.limiter.settle(reservation, n_used, self.now);
            begun.n_tokens = n_used;
        }
    }

    /// Requests and tokens of a scope that began at `from` or later, and the running ones.
    fn used(&self, scope: usize, from: Timestamp) -> (u64, u64, u64) {
        let of_scope = || self.begun.iter().filter(move |begun| begun.scopes.contains(&scope));
        let recent = || of_scope().filter(|begun| begun.at >= from);
        let running = of_scope().filter(|begun| begun.reservation.is_some()).count();
        let n_requests = recent().filter(|begun| !begun.is_excess).count();
        (n_requests as u64, recent().map(|begun| begun.n_tokens).sum(), running as u64)
    }

    /// Checks after an admission that the total is within the limits, usage beyond reservations included.
    fn check_tokens(&self, asked: &[usize]) -> Result<(), String> {
        let over = |&&i: &&usize| {
            let (_, used, _) = self.used(i, self.minute());
            self.scopes[i].limits.tokens_per_minute.is_some_and(|limit| used > limit)
        };
        asked.iter().find(over).map_or(Ok(()), |i| Err(format!("scope {i} had no tokens left")))
    }

    /// The earliest time that is within a minute of the present.
    fn minute(&self) -> Timestamp {
        if self.now.since(Timestamp::from_ns(0)) < MINUTE {
            return Timestamp::from_ns(0);
        }
        self.now - MINUTE + Nanos(1)
    }

    fn check_minute(&self) -> Result<(), String> {
        for (i, scope) in self.scopes.iter().enumerate() {
            let (requests, tokens, running) = self.used(i, self.minute());
            let Limits { requests_per_minute, tokens_per_minute, concurrent_requests } = scope.limits;
            let excess = |begun: &&StartedRequest| {
                begun.is_excess && begun.scopes.contains(&i) && begun.at >= self.minute()
            };
            let tokens = tokens - self.begun.iter().filter(excess).map(|begun| begun.n_tokens).sum::<u64>();
            for (used, limit) in
                [(requests, requests_per_minute), (tokens, tokens_per_minute), (running, concurrent_requests)]
            {
                if limit.is_some_and(|limit| used > limit) {
                    return Err(format!("{used} of {limit:?} are used in {}", scope.name));
                }
            }
        }
        Ok(())
    }

    /// Checks that every refused request would not fit either if the minute were a quarter of a second
    /// longer.
    fn judge(&self, asked: &[usize], n_tokens: u64, refusal: Option<&LimitRefusal>) -> Result<(), String> {
        let Some(refusal) = refusal else { return Ok(()) };
        let (mut never, mut full) = (false, false);
        for &i in asked {
            let (requests, tokens, running) = self.used(i, self.minute() - BUCKET);
            let limits = self.scopes[i].limits;
            never |= limits.tokens_per_minute.is_some_and(|limit| n_tokens > limit);
            full |= limits.requests_per_minute.is_some_and(|limit| requests >= limit)
                || limits.tokens_per_minute.is_some_and(|limit| tokens + n_tokens > limit)
                || limits.concurrent_requests.is_some_and(|limit| running >= limit);
        }
        match refusal {
            LimitRefusal::NeverFits { .. } if never => Ok(()),
            LimitRefusal::Exceeded { .. } if full && !never => Ok(()),
            _ => Err(format!("{refusal:?} although it fits")),
        }
    }

    fn check_wait(&self, scopes: &[Scope], n_tokens: u64, refusal: LimitRefusal) -> Result<(), String> {
        let LimitRefusal::Exceeded { wait: Some(wait), .. } = refusal else { return Ok(()) };
        let after = |time: Nanos| {
            let mut later = self.limiter.clone();
            later.reserve(scopes, n_tokens, self.now + time).err()
        };
        let (early, late) = (after(Nanos(wait.0 - 1)), after(wait));
        if !matches!(early, Some(LimitRefusal::Exceeded { wait: Some(Nanos(1)), .. })) {
            return Err(format!("the wait of {refusal:?} is too long: {early:?}"));
        }
        match late {
            None | Some(LimitRefusal::Exceeded { wait: None, .. }) => Ok(()),
            _ => Err(format!("the wait of {refusal:?} is too short: {late:?}")),
        }
    }
}

fn world(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    World::new(seed, bug).run()
}

#[test]
fn no_minute_has_more_than_its_limits_and_nothing_that_fits_is_refused() {
    for seed in 0..N_SCHEDULES {
        if let Err(fault) = world(seed, None) {
            panic!("seed {seed}: {fault}");
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let found = (0..N_SCHEDULES).any(|seed| world(seed, Some(bug)).is_err());
        assert!(found, "{bug:?} is not found in {N_SCHEDULES} schedules");
    }
}

fn scope(name: &str, requests: Option<u64>, tokens: Option<u64>) -> Scope {
    let limits =
        Limits { requests_per_minute: requests, tokens_per_minute: tokens, concurrent_requests: None };
    Scope { name: Arc::from(name), limits }
}

#[test]
fn the_status_is_that_of_the_scope_with_the_least_left() {
    let mut limiter = Limiter::new(10);
    let scopes = [scope("key", Some(10), Some(100)), scope("project", None, Some(60))];
    let at = |ms| Timestamp::from_ns(0) + Nanos::from_ms(ms);
    let full = limiter.status(&scopes, at(0));
    assert_eq!(full.tokens, Some(Remaining { limit: 60, remaining: 60, reset: Nanos(0) }));
    let first = limiter.reserve(&scopes, 50, at(100)).expect("it fits");
    let status = limiter.status(&scopes, at(1100));
    assert_eq!(status.requests, Some(Remaining { limit: 10, remaining: 9, reset: Nanos::from_ms(59_150) }));
    assert_eq!(status.tokens, Some(Remaining { limit: 60, remaining: 10, reset: Nanos::from_ms(59_150) }));
    limiter.settle(first, 20, at(1100));
    assert_eq!(limiter.status(&scopes, at(1100)).tokens.map(|left| left.remaining), Some(40));
    // A limit that is lowered below what is used leaves nothing.
    let lowered = [scope("key", None, Some(5))];
    assert_eq!(limiter.status(&lowered, at(1100)).tokens.map(|left| left.remaining), Some(0));
}

#[test]
fn scopes_that_use_nothing_make_room() {
    let mut limiter = Limiter::new(2);
    let at = |ms| Timestamp::from_ns(0) + Nanos::from_ms(ms);
    let mut ask = |name: &str, ms| limiter.reserve(&[scope(name, Some(1), None)], 1, at(ms));
    let (first, second) = (ask("a", 0).expect("room"), ask("b", 0).expect("room"));
    assert_eq!(ask("c", 1000).err(), Some(LimitRefusal::TooManyScopes));
    limiter.settle(first, 1, at(1000));
    limiter.cancel(second);
    let third = limiter.reserve(&[scope("c", Some(1), None)], 1, at(2000)).expect("b has used nothing");
    assert_eq!(limiter.n_scopes(), 2, "a has a request within the last minute");
    limiter.settle(third, 1, at(2000));
    let _last = limiter.reserve(&[scope("d", None, Some(1))], 1, at(200_000)).expect("room");
    assert_eq!(limiter.n_scopes(), 1);
}
