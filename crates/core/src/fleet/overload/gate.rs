//! The gate in front of an engine's queue: admits a request if its predicted wait is short enough for its
//! class and its deadline can be met. Has no clock and does not queue.

use std::collections::BTreeMap;

use super::class::ServiceClass;
use super::predict::Ahead;
use crate::request::TenantId;
use crate::scheduling::ServiceRate;
use crate::time::{Nanos, Timestamp};

/// Share of admitted tokens that a class is guaranteed if it requests that much.
const LEAST_SHARE: f64 = 0.05;
/// Share of the longest wait that is kept for classes below that share.
const RESERVED: f64 = 0.05;
/// Half-life in seconds of requested and admitted work.
const HALF_LIFE_S: f64 = 10.0;
/// Expected output tokens of a request before any has ended, or its `max_tokens` if that is less. Counts as
/// one request.
const FIRST_MEAN_OUTPUT: f64 = 128.0;
/// Number of latest requests that the mean of output tokens mostly depends on.
const N_COUNTED: u32 = 128;
/// Number of ended requests from which errors of predictions are learned.
const N_LEARNED: u32 = 32;
/// Weight of the newest error of a prediction.
const NEWEST_WEIGHT: f64 = 0.02;
/// Shortest predicted wait from whose error the correction is learned.
const LEAST_CORRECTED: Nanos = Nanos::from_ms(50);

/// Bounds of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateConfig {
    /// Longest predicted wait for the first step with which a request is admitted.
    pub max_wait: Nanos,
}

/// A request that asks for admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// Tenant; tenants take turns in the engine's queue.
    pub tenant: TenantId,
    /// Class of service, which bounds its wait.
    pub class: ServiceClass,
    /// Number of its sequences.
    pub n_sequences: u32,
    /// Number of its prompt tokens.
    pub n_prompt_tokens: u64,
    /// Maximum number of output tokens of each sequence.
    pub max_tokens: u32,
    /// Time from now after which its answer is of no use.
    pub deadline: Option<Nanos>,
}

/// Reason why a request may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overloaded {
    /// The work ahead of the request is over the bound.
    Busy {
        /// Predicted wait of the request.
        wait: Nanos,
        /// Time after which the request would be admitted if no other came.
        retry_after: Nanos,
    },
    /// The request would miss its deadline with nothing ahead of it.
    TooSlow {
        /// Machine time that it would take.
        needed: Nanos,
    },
}

/// An admitted request. It must be returned to [`Gate::end`].
#[derive(Debug)]
#[must_use = "it counts until it is given back"]
pub struct Ticket {
    tenant: TenantId,
    n_sequences: u64,
    n_prompt_tokens: u64,
    entered: Timestamp,
    /// Predicted time to its first token, uncorrected.
    predicted: Nanos,
    is_running: bool,
}

/// Waiting requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waiting {
    n_sequences: u64,
    n_tokens: u64,
}

impl Waiting {
    fn add(&mut self, more: Self) {
        self.n_sequences += more.n_sequences;
        self.n_tokens += more.n_tokens;
    }

    fn remove(&mut self, less: Self) {
        self.n_sequences -= less.n_sequences;
        self.n_tokens -= less.n_tokens;
    }
}

/// Machine time that a class requested and was granted recently.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    asked: f64,
    admitted: f64,
}

/// Counts the work that has been admitted to an engine, and admits further requests.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    machine: Option<ServiceRate>,
    /// Waiting requests by tenant.
    waiting: BTreeMap<TenantId, Waiting>,
    all_waiting: Waiting,
    n_running: u64,
    /// Mean of output tokens of a sequence over ended requests, weighted towards the newest.
    mean_output: f64,
    /// Number of requests in `mean_output`, up to a maximum.
    n_ended: u32,
    /// Ratio of measured to predicted waits.
    correction: f64,
    accounts: [Account; ServiceClass::ALL.len()],
    accounted: Timestamp,
}

impl Ticket {
    fn waiting(&self) -> Waiting {
        Waiting { n_sequences: self.n_sequences, n_tokens: self.n_prompt_tokens }
    }
}

impl Gate {
    /// Creates a gate without admitted requests. While the machine's speed is unknown, every request is
    /// admitted.
    pub fn new(config: GateConfig) -> Self {
        Self {
            config,
            machine: None,
            waiting: BTreeMap::new(),
            all_waiting: Waiting::default(),
            n_running: 0,
            mean_output: FIRST_MEAN_OUTPUT,
            n_ended: 0,
            correction: 1.0,
            accounts: Default::default(),
            accounted: Timestamp::default(),
        }
    }

    /// Sets the measured speed of the machine.
    pub fn set_machine(&mut self, machine: Option<ServiceRate>) {
        self.machine = machine;
    }

    /// Admits a request or refuses it.
    ///
    /// # Errors
    /// When it would wait for too long, or miss its deadline.
    pub fn admit(&mut self, ask: &AdmissionRequest, now: Timestamp) -> Result<Ticket, Overloaded> {
        self.pass_to(now);
        let Some(machine) = self.machine else { return Ok(self.enter(ask, Nanos(0), now)) };
        let work = self.work(&machine, ask);
        self.accounts[ask.class as usize].asked += work;
        let predicted = self.decide(&machine, ask)?;
        self.accounts[ask.class as usize].admitted += work;
        Ok(self.enter(ask, predicted, now))
    }

    /// Whether [`Self::admit`] would admit the request. A request that is refused here counts as requested
    /// work.
    ///
    /// # Errors
    /// Errors of [`Self::admit`].
    pub fn check(&mut self, ask: &AdmissionRequest, now: Timestamp) -> Result<(), Overloaded> {
        self.pass_to(now);
        let Some(machine) = self.machine else { return Ok(()) };
        let decided = self.decide(&machine, ask).map(|_| ());
        if decided.is_err() {
            self.accounts[ask.class as usize].asked += self.work(&machine, ask);
        }
        decided
    }

    /// Notes the first token of a request; later calls are ignored.
    pub fn first_token(&mut self, ticket: &mut Ticket, now: Timestamp) {
        if std::mem::replace(&mut ticket.is_running, true) {
            return;
        }
        self.leave_queue(ticket);
        self.n_running += ticket.n_sequences;
        if ticket.predicted >= LEAST_CORRECTED {
            let ratio = now.since(ticket.entered).0 as f64 / ticket.predicted.0 as f64;
            let mixed = self.correction + NEWEST_WEIGHT * (ratio.clamp(0.1, 10.0) - self.correction);
            self.correction = mixed.clamp(0.25, 4.0);
        }
    }

    /// Ends a request with `n_output` tokens of all its sequences; `is_whole` if it was not cut short.
    pub fn end(&mut self, ticket: Ticket, n_output: u64, is_whole: bool) {
        if ticket.is_running {
            self.n_running -= ticket.n_sequences;
        } else {
            self.leave_queue(&ticket);
        }
        if is_whole {
            let n_output = n_output as f64 / ticket.n_sequences.max(1) as f64;
            self.n_ended = (self.n_ended + 1).min(N_COUNTED);
            self.mean_output += (n_output - self.mean_output) / f64::from(self.n_ended + 1);
        }
    }

    /// Number of sequences that wait for their first token, and of those that have it.
    pub fn n_sequences(&self) -> (u64, u64) {
        (self.all_waiting.n_sequences, self.n_running)
    }

    /// The predicted wait of one more sequence behind all waiting ones; zero while the machine's speed is
    /// unknown.
    pub fn predicted_wait(&self) -> Nanos {
        let Some(machine) = &self.machine else { return Nanos(0) };
        let Waiting { n_sequences, n_tokens } = self.all_waiting;
        let ahead = Ahead { n_sequences, n_tokens, n_running: self.n_running, mean_output: self.mean_output };
        Nanos((machine.wait(ahead, 1).0 as f64 * self.correction) as u64)
    }

    /// Decides about a request; returns its predicted time to first token, uncorrected.
    fn decide(&self, machine: &ServiceRate, ask: &AdmissionRequest) -> Result<Nanos, Overloaded> {
        let ahead = self.ahead(ask);
        let predicted_wait = machine.wait(ahead, ask.n_sequences);
        let wait = Nanos((predicted_wait.0 as f64 * self.correction) as u64);
        let prefill = machine.prefill(ahead, ask.n_prompt_tokens);
        if let Some(deadline) = ask.deadline {
            let n_output = self.n_output(ask);
            let alone = machine.alone(ask.n_prompt_tokens, n_output);
            if alone > deadline {
                return Err(Overloaded::TooSlow { needed: alone });
            }
            let total = Nanos(wait.0 + prefill.0 + machine.decode(ahead, n_output).0);
            if total > deadline {
                return Err(Overloaded::Busy { wait, retry_after: Nanos(total.0 - deadline.0) });
            }
        }
        let most = Nanos((self.config.max_wait.0 as f64 * self.band(ask.class)) as u64);
        // A request that nothing is ahead of enters, whatever its own size.
        if wait > most && ahead.n_sequences + ahead.n_running > 0 {
            return Err(Overloaded::Busy { wait, retry_after: Nanos(wait.0 - most.0) });
        }
        // What is predicted from a guess of the outputs says nothing about the machine.
        let is_guess = self.n_ended < N_LEARNED;
        Ok(if is_guess { Nanos(0) } else { Nanos(predicted_wait.0 + prefill.0) })
    }

    fn enter(&mut self, ask: &AdmissionRequest, predicted: Nanos, now: Timestamp) -> Ticket {
        let ticket = Ticket {
            tenant: ask.tenant.clone(),
            n_sequences: u64::from(ask.n_sequences),
            n_prompt_tokens: ask.n_prompt_tokens,
            entered: now,
            predicted,
            is_running: false,
        };
        let waiting = ticket.waiting();
        self.all_waiting.add(waiting);
        self.waiting.entry(ask.tenant.clone()).or_default().add(waiting);
        ticket
    }

    fn leave_queue(&mut self, ticket: &Ticket) {
        let waiting = ticket.waiting();
        self.all_waiting.remove(waiting);
        let Some(of_tenant) = self.waiting.get_mut(&ticket.tenant) else { return };
        of_tenant.remove(waiting);
        if of_tenant.n_sequences == 0 {
            self.waiting.remove(&ticket.tenant);
        }
    }

    /// Work that begins before a request of this tenant: the tenant's own waiting requests, and, since
    /// tenants take turns, one sequence of every other tenant for each of these and for the request itself.
    fn ahead(&self, ask: &AdmissionRequest) -> Ahead {
        let own = self.waiting.get(&ask.tenant).copied().unwrap_or_default();
        let all = self.all_waiting;
        let n_others = (self.waiting.len() - usize::from(own.n_sequences > 0)) as u64;
        let turns = (own.n_sequences + 1) * n_others;
        let mean_tokens = all.n_tokens.checked_div(all.n_sequences).unwrap_or(0);
        Ahead {
            n_sequences: all.n_sequences.min(own.n_sequences + turns),
            n_tokens: all.n_tokens.min(own.n_tokens + turns * mean_tokens),
            n_running: self.n_running,
            mean_output: self.mean_output,
        }
    }

    /// Expected output tokens of a sequence.
    fn n_output(&self, ask: &AdmissionRequest) -> f64 {
        self.mean_output.min(f64::from(ask.max_tokens))
    }

    /// The machine time of a request in a full batch, in seconds.
    fn work(&self, machine: &ServiceRate, ask: &AdmissionRequest) -> f64 {
        machine.work_s(ask.n_prompt_tokens, self.n_output(ask) * f64::from(ask.n_sequences))
    }

    /// Share of the longest wait up to which a class is admitted now.
    fn band(&self, class: ServiceClass) -> f64 {
        let total: f64 = self.accounts.iter().map(|account| account.admitted).sum();
        let is_starved =
            |account: &Account| account.asked > account.admitted && account.admitted < total * LEAST_SHARE;
        if is_starved(&self.accounts[class as usize]) {
            return 1.0;
        }
        let reserved = if self.accounts.iter().any(is_starved) { RESERVED } else { 0.0 };
        class.band() - reserved
    }

    fn pass_to(&mut self, now: Timestamp) {
        let kept = (-now.since(self.accounted).as_secs_f64() / HALF_LIFE_S).exp2();
        self.accounted = self.accounted.max(now);
        for account in &mut self.accounts {
            account.asked *= kept;
            account.admitted *= kept;
        }
    }
}
