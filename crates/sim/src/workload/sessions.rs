//! Sessions whose prompts grow: each turn repeats the conversation so far and adds to it. A chat adds a
//! message of its user, an agent the result of a tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use throng_core::time::{Nanos, Timestamp};

use super::Workload;
use super::arrivals::{ArrivalProcess, Arrivals};
use super::request::{EndedRequest, SimRequest, Span, TimedRequest, content_id};
use crate::distribution::Distribution;
use crate::error::SimError;

const SYSTEM: u64 = 11;
const START: u64 = 12;
const TURN: u64 = 13;
const ANSWER: u64 = 14;

/// Maximum turns of a session.
const MAX_TURNS: u32 = 10_000;

/// Lengths and pauses of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionShape {
    /// Number of requests of a session.
    pub turns: Distribution,
    /// Number of tokens that all sessions begin with: instructions and tools.
    pub system: u32,
    /// Tokens of a session's own beginning: documents, files.
    pub start: Distribution,
    /// Tokens that each turn adds before its answer.
    pub turn: Distribution,
    /// Number of tokens of an answer.
    pub output: Distribution,
    /// Seconds from an answer to the next request.
    pub think_s: Distribution,
    /// Maximum tokens of a prompt and its answer: a session that reaches it ends.
    pub max_context: u32,
}

impl SessionShape {
    /// A chat: short messages, a reader who thinks for half a minute.
    pub fn chat() -> Self {
        Self {
            turns: Distribution::LogNormal { median: 4.0, sigma: 0.8 },
            system: 400,
            start: Distribution::Constant(0.0),
            turn: Distribution::LogNormal { median: 60.0, sigma: 1.0 },
            output: Distribution::LogNormal { median: 250.0, sigma: 0.7 },
            think_s: Distribution::LogNormal { median: 25.0, sigma: 0.9 },
            max_context: 32_768,
        }
    }

    /// An agent with tools: a median of 43 turns, 142,000 tokens in and 444 out a request.
    pub fn agent() -> Self {
        Self {
            turns: Distribution::LogNormal { median: 43.0, sigma: 0.4 },
            system: 12_000,
            start: Distribution::LogNormal { median: 8_000.0, sigma: 0.5 },
            turn: Distribution::LogNormal { median: 4_300.0, sigma: 0.5 },
            output: Distribution::LogNormal { median: 444.0, sigma: 0.7 },
            think_s: Distribution::LogNormal { median: 2.0, sigma: 1.0 },
            max_context: 400_000,
        }
    }

    fn check(&self) -> Result<(), SimError> {
        self.turns.check("turns")?;
        self.start.check("start")?;
        self.turn.check("turn")?;
        self.output.check("output")?;
        self.think_s.check("think_s")?;
        match self.max_context {
            0 => Err(SimError::setting("max_context", "it is 0")),
            _ => Ok(()),
        }
    }
}

/// Sessions that begin independently of each other. A session whose request failed continues after its pause,
/// with the same prompt.
#[derive(Debug)]
pub struct Sessions {
    shape: SessionShape,
    arrivals: Arrivals,
    /// No session begins later than this.
    end: Timestamp,
    seed: u64,
    rng: Rng,
    n_tenants: u32,
    n_begun: u64,
    live: BTreeMap<u64, Session>,
}

#[derive(Debug)]
struct Session {
    tenant: u32,
    prompt: Vec<Span>,
    n_tokens: u32,
    output: Span,
    n_done: u32,
    n_turns: u32,
    n_failed: u32,
}

/// A session ends after this number of consecutive failed requests.
const MAX_FAILED: u32 = 5;

impl Sessions {
    /// Sessions that begin by this process within `duration`.
    ///
    /// # Errors
    /// When a number cannot be one of a workload.
    pub fn new(
        process: ArrivalProcess,
        shape: SessionShape,
        duration: Nanos,
        seed: u64,
    ) -> Result<Self, SimError> {
        shape.check()?;
        let mut rng = Rng::with_seed(seed);
        let (arrivals, end) = (Arrivals::new(process, rng.fork())?, Timestamp::default() + duration);
        Ok(Self { shape, arrivals, end, seed, rng, n_tenants: 1, n_begun: 0, live: BTreeMap::new() })
    }

    /// Divides the sessions among several tenants.
    #[must_use]
    pub fn with_tenants(self, n_tenants: u32) -> Self {
        Self { n_tenants: n_tenants.max(1), ..self }
    }

    /// Number of running sessions.
    pub fn n_live(&self) -> usize {
        self.live.len()
    }

    /// Adds the next turn to a session; `None` where it is over.
    fn turn(&mut self, id: u64) -> Option<SimRequest> {
        let session = self.live.get_mut(&id)?;
        if session.n_done >= session.n_turns {
            return None;
        }
        let part = |kind| content_id(self.seed, kind, (id << 14) | u64::from(session.n_done));
        let n_turn = self.shape.turn.sample_tokens(&mut self.rng, 1);
        let n_output = self.shape.output.sample_tokens(&mut self.rng, 1);
        session.prompt.push(Span { content: part(TURN), n_tokens: n_turn });
        session.n_tokens = session.n_tokens.saturating_add(n_turn);
        session.output = Span { content: part(ANSWER), n_tokens: n_output };
        self.request_of(id)
    }

    /// The request of a session's present turn; `None` where it would be too long.
    fn request_of(&self, id: u64) -> Option<SimRequest> {
        let session = self.live.get(&id)?;
        if session.n_tokens.saturating_add(session.output.n_tokens) > self.shape.max_context {
            return None;
        }
        let prompt: Arc<[Span]> = session.prompt.as_slice().into();
        Some(SimRequest { tenant: session.tenant, ..SimRequest::new(prompt, session.output) })
    }
}

impl Workload for Sessions {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        loop {
            let at = self.arrivals.next_at();
            if at > self.end {
                return Ok(None);
            }
            let id = self.n_begun;
            self.n_begun += 1;
            let n_start = self.shape.start.sample_tokens(&mut self.rng, 0);
            let system = Span { content: content_id(self.seed, SYSTEM, 0), n_tokens: self.shape.system };
            let start = Span { content: content_id(self.seed, START, id), n_tokens: n_start };
            let session = Session {
                tenant: self.rng.u32(0..self.n_tenants),
                prompt: [system, start].into_iter().filter(|span| span.n_tokens > 0).collect(),
                n_tokens: system.n_tokens.saturating_add(start.n_tokens),
                output: Span { content: 0, n_tokens: 0 },
                n_done: 0,
                n_turns: self.shape.turns.sample_tokens(&mut self.rng, 1).min(MAX_TURNS),
                n_failed: 0,
            };
            self.live.insert(id, session);
            if let Some(request) = self.turn(id) {
                return Ok(Some(TimedRequest { at, request, tag: id }));
            }
            self.live.remove(&id);
        }
    }

    fn follow_up(&mut self, ended: &EndedRequest) -> Option<TimedRequest> {
        let id = ended.tag;
        let think = Nanos((self.shape.think_s.sample(&mut self.rng) * 1e9) as u64);
        let session = self.live.get_mut(&id)?;
        let request = if ended.is_whole {
            let output = session.output;
            session.prompt.push(output);
            session.n_tokens = session.n_tokens.saturating_add(output.n_tokens);
            (session.n_done, session.n_failed) = (session.n_done + 1, 0);
            self.turn(id)
        } else {
            session.n_failed += 1;
            let is_over = session.n_failed >= MAX_FAILED;
            self.request_of(id).filter(|_| !is_over)
        };
        let Some(request) = request else {
            self.live.remove(&id);
            return None;
        };
        Some(TimedRequest { at: ended.at + think, request, tag: id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All requests of sessions that are answered at once.
    fn all(mut sessions: Sessions) -> Vec<TimedRequest> {
        let mut requests = Vec::new();
        while let Some(first) = sessions.next_request().expect("no file") {
            let mut next = Some(first);
            while let Some(timed) = next {
                let (tag, at, n_output) = (timed.tag, timed.at, timed.request.output.n_tokens);
                requests.push(timed);
                next = sessions.follow_up(&EndedRequest { tag, at, n_output, is_whole: true });
            }
        }
        assert_eq!(sessions.n_live(), 0);
        requests
    }

    fn median(mut values: Vec<u32>) -> u32 {
        values.sort_unstable();
        values[values.len() / 2]
    }

    #[test]
    fn agents_ask_as_much_as_is_reported_of_them() {
        let process = ArrivalProcess::Poisson { rate: 1.0 };
        let sessions = Sessions::new(process, SessionShape::agent(), Nanos::from_ms(400_000), 3);
        let requests = all(sessions.expect("valid"));
        let prompt = median(requests.iter().map(|timed| timed.request.n_prompt_tokens()).collect());
        let output = median(requests.iter().map(|timed| timed.request.output.n_tokens).collect());
        let mut turns = BTreeMap::new();
        requests.iter().for_each(|timed| *turns.entry(timed.tag).or_insert(0) += 1);
        let turns = median(turns.into_values().collect());
        assert!((125_000..160_000).contains(&prompt), "{prompt} tokens in");
        assert!((400..490).contains(&output), "{output} tokens out");
        assert!((38..48).contains(&turns), "{turns} turns");
    }

    #[test]
    fn each_turn_repeats_all_before_it_and_a_failed_one_is_asked_again() {
        let process = ArrivalProcess::Regular { rate: 1.0 };
        let shape = SessionShape { turns: Distribution::Constant(3.0), ..SessionShape::chat() };
        let mut sessions = Sessions::new(process, shape, Nanos::from_ms(1_000), 3).expect("valid");
        let first = sessions.next_request().expect("no file").expect("one");
        let ended = |is_whole| EndedRequest { tag: first.tag, at: first.at, n_output: 1, is_whole };
        let again = sessions.follow_up(&ended(false)).expect("it goes on");
        assert_eq!(again.request, first.request);
        let second = sessions.follow_up(&ended(true)).expect("it goes on");
        let n = first.request.prompt.len();
        assert_eq!(second.request.prompt[..n], *first.request.prompt);
        assert_eq!(second.request.prompt[n], first.request.output);
        assert_eq!(second.request.prompt.len(), n + 2);
    }
}
