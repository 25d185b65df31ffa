//! Streams outlive replicas: whatever arrives, dies, is delayed or repeated, each stream gets each token
//! once, from at most one owner, none is lost, none runs in a region that its residency rule forbids, and
//! retries stay within their budget; planted bugs are found. A failing seed prints the command that repeats
//! it.

use std::collections::BTreeMap;

use fastrand::Rng;
use throng_core::fleet::health::{Delivery, Epoch, Ownership, RetryBudget, StreamId};
use throng_core::fleet::routing::{Policy, PrefixIndex, Query, Region, ReplicaId, Router, Ticket};
use throng_core::time::Timestamp;
use throng_testkit::nightly::amount;

const RESERVE: u32 = 2;

/// Mistakes that a user of these structs could make, and that this test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A token counts as its stream's current owner's, whoever sent it.
    NoFence,
    /// A token is delivered although it was before.
    RepeatedTokens,
    /// One stream of a lost replica is not moved.
    ForgottenStream,
    /// Attempts are repeated without asking the budget.
    NoBudget,
    /// The load of a request is counted after its end.
    LeakedLoad,
    /// The residency rule of a stream is not kept when the stream moves.
    ForgottenRule,
}

/// A token on its way.
#[derive(Debug, Clone, Copy)]
struct Message {
    stream: StreamId,
    sender: ReplicaId,
    epoch: Epoch,
    position: u64,
}

struct Stream {
    /// True epoch, beside that of `Ownership`.
    epoch: Epoch,
    ticket: Ticket,
    /// The only region that it may run in.
    bound: Option<Region>,
    n_tokens: u64,
    received: Vec<u64>,
}

struct World {
    rng: Rng,
    bug: Option<Bug>,
    router: Router,
    live: Vec<ReplicaId>,
    owners: Ownership,
    streams: BTreeMap<StreamId, Stream>,
    on_the_way: Vec<Message>,
    budget: RetryBudget,
    n_requests: u64,
    n_retries: u64,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut router = Router::new(Policy::ALL[rng.usize(..4)], seed);
        let live: Vec<_> =
            (0..3).map(|idx| router.add(&format!("r{idx}"), PrefixIndex::Inferred, 64)).collect();
        for (id, region) in live.iter().zip(["near", "far", "near"]) {
            router.set_region(*id, Some(region.into()));
        }
        Self {
            rng,
            bug,
            router,
            live,
            owners: Ownership::new(6),
            streams: BTreeMap::new(),
            on_the_way: Vec::new(),
            budget: RetryBudget::new(RESERVE, 10),
            n_requests: 0,
            n_retries: 0,
        }
    }

    /// Places a stream, whose rule is `bound`, by a query with the rule `asked`.
    fn place(
        &mut self,
        n_tokens: u32,
        bound: Option<&Region>,
        asked: Option<&Region>,
    ) -> Result<Ticket, String> {
        let (pinned, regions) = (None, asked.map(std::slice::from_ref));
        let query = Query { n_tokens, blocks: &[], session: None, pinned, eligible: &self.live, regions };
        let choice =
            self.router.choose(&query, Timestamp::from_ns(self.n_requests)).ok_or("nothing was chosen")?;
        if !self.live.contains(&choice.replica) {
            return Err(format!("{:?} is dead and was chosen", choice.replica));
        }
        let region = self.router.place(choice.replica).0;
        if bound.is_some() && region.as_ref() != bound {
            return Err(format!("a stream that is bound to {bound:?} was placed in {region:?}"));
        }
        Ok(self.router.start(&choice, &query))
    }

    /// A request comes; the replica may refuse it, and another attempt is made if the budget has one.
    fn arrive(&mut self) -> Result<(), String> {
        self.n_requests += 1;
        self.budget.request();
        let n_prompt = self.rng.u32(1..2000);
        let bound = [None, Some("near"), Some("far")][self.rng.usize(..3)].map(Region::from);
        let mut ticket = self.place(n_prompt, bound.as_ref(), bound.as_ref())?;
        while self.rng.u8(..3) == 0 {
            self.router.end(ticket);
            if !self.budget.retry() && self.bug != Some(Bug::NoBudget) {
                return Ok(());
            }
            self.n_retries += 1;
            ticket = self.place(n_prompt, bound.as_ref(), bound.as_ref())?;
        }
        let id = StreamId(self.n_requests);
        let Ok(epoch) = self.owners.assign(id, ticket.replica()) else {
            self.router.end(ticket);
            return if self.streams.len() == 6 { Ok(()) } else { Err("refused below the bound".into()) };
        };
        let n_tokens = self.rng.u64(1..8);
        self.streams.insert(id, Stream { epoch, ticket, bound, n_tokens, received: Vec::new() });
        self.send(id);
        Ok(())
    }

    /// The owner sends all that is left; some of it twice.
    fn send(&mut self, id: StreamId) {
        let stream = &self.streams[&id];
        let (sender, epoch) = (stream.ticket.replica(), stream.epoch);
        for position in stream.received.len() as u64..stream.n_tokens {
            for _ in 0..self.rng.usize(1..=2) {
                self.on_the_way.push(Message { stream: id, sender, epoch, position });
            }
        }
    }

    /// Tokens of one sender arrive in their order, those of different senders in any.
    fn receive(&mut self) -> Result<(), String> {
        let Some(any) = self.rng.choice(&self.on_the_way).copied() else { return Ok(()) };
        let same = |message: &Message| message.stream == any.stream && message.epoch == any.epoch;
        let Some(at) = self.on_the_way.iter().position(same) else { return Ok(()) };
        let message = self.on_the_way.remove(at);
        let id = message.stream;
        let current = self.streams.get(&id).map(|stream| stream.epoch);
        let fenced = self.bug != Some(Bug::NoFence);
        let epoch = if fenced { message.epoch } else { current.unwrap_or(message.epoch) };
        let verdict = self.owners.deliver(id, epoch, message.position);
        let accepted = verdict == Delivery::Accepted
            || (verdict == Delivery::Repeated && self.bug == Some(Bug::RepeatedTokens));
        if !accepted {
            return if verdict == Delivery::Missing { Err("a token is missing".into()) } else { Ok(()) };
        }
        let stream = self.streams.get_mut(&id).ok_or("a token for a stream that has ended")?;
        if (message.epoch, message.sender) != (stream.epoch, stream.ticket.replica()) {
            return Err(format!("{id:?} took a token of {:?}, which does not own it", message.sender));
        }
        stream.received.push(message.position);
        self.router.first_token(&mut stream.ticket);
        if stream.received.len() as u64 == stream.n_tokens {
            self.finish(id)?;
        }
        Ok(())
    }

    fn finish(&mut self, id: StreamId) -> Result<(), String> {
        self.owners.end(id);
        let stream = self.streams.remove(&id).ok_or("ended twice")?;
        if self.bug != Some(Bug::LeakedLoad) {
            self.router.end(stream.ticket);
        }
        let whole = stream.received.iter().copied().eq(0..stream.n_tokens);
        whole.then_some(()).ok_or_else(|| format!("{id:?} received {:?}", stream.received))
    }

    /// A replica is lost, another one of its region comes, and its streams go on elsewhere. What it sent is
    /// still on its way.
    fn die(&mut self) -> Result<(), String> {
        let lost = self.live.swap_remove(self.rng.usize(..self.live.len()));
        let region = self.router.place(lost).0;
        self.router.remove(lost);
        let next = self.router.add("again", PrefixIndex::Inferred, 64);
        self.router.set_region(next, region);
        self.live.push(next);
        let mut moved: Vec<_> = self.owners.of(lost).collect();
        if self.bug == Some(Bug::ForgottenStream) {
            moved.pop();
        }
        for id in moved {
            let bound = self.streams.get(&id).and_then(|stream| stream.bound.clone());
            let asked = bound.as_ref().filter(|_| self.bug != Some(Bug::ForgottenRule));
            let ticket = self.place(1, bound.as_ref(), asked)?;
            let epoch = self.owners.assign(id, ticket.replica()).map_err(|error| error.to_string())?;
            let stream = self.streams.get_mut(&id).ok_or("it owned a stream that has ended")?;
            self.router.end(std::mem::replace(&mut stream.ticket, ticket));
            stream.epoch = epoch;
            self.send(id);
        }
        // Some of what a lost replica sent never comes.
        let rng = &mut self.rng;
        self.on_the_way.retain(|message| message.sender != lost || rng.bool());
        Ok(())
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..60 {
            match self.rng.u8(..10) {
                0..2 => self.arrive()?,
                2..9 => self.receive()?,
                _ => self.die()?,
            }
            let n_owned: usize = self.live.iter().map(|id| self.owners.of(*id).count()).sum();
            if n_owned != self.streams.len() {
                return Err(format!("{} streams have {n_owned} live owners", self.streams.len()));
            }
            if self.n_retries > u64::from(RESERVE) + self.n_requests / 10 {
                return Err(format!("{} retries of {} requests", self.n_retries, self.n_requests));
            }
        }
        while !self.on_the_way.is_empty() {
            self.receive()?;
        }
        let n_tokens: u64 = self.live.iter().map(|id| self.router.n_tokens(*id)).sum();
        if !self.streams.is_empty() || n_tokens != 0 {
            return Err(format!("{} streams are lost, {n_tokens} tokens still counted", self.streams.len()));
        }
        Ok(())
    }
}

#[test]
fn streams_outlive_replicas() {
    let only = std::env::var("THRONG_FLEET_SEED").ok().map(|seed| seed.parse().expect("a number"));
    for seed in only.map_or(0..amount(10_000, 100_000), |seed: u64| seed..seed + 1) {
        if let Err(problem) = World::new(seed, None).run() {
            panic!(
                "seed {seed}: {problem}\nrerun: THRONG_FLEET_SEED={seed} cargo test -p throng-core --test integration fleet streams"
            );
        }
    }
}

#[test]
fn planted_bugs_are_caught() {
    let bugs = [
        Bug::NoFence,
        Bug::RepeatedTokens,
        Bug::ForgottenStream,
        Bug::NoBudget,
        Bug::LeakedLoad,
        Bug::ForgottenRule,
    ];
    for bug in bugs {
        let found = (0..1000).find_map(|seed| World::new(seed, Some(bug)).run().err());
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} was not found")));
    }
}
