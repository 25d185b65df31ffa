//! Overload control of one model: requests pass a gate that predicts their wait, and run within time
//! limits. The decisions are those of `throng_core::fleet::overload`; this module adds the lock, the clock
//! and the requests' headers. Does not know prompts and answers.

mod admitted;
mod scale;
mod urgency;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::fleet::overload::{AdmissionRequest, Gate, GateConfig, Overloaded, ServiceClass, Ticket};
use throng_core::request::TenantId;
use throng_core::scheduling::ServiceRate;
use throng_core::time::{Nanos, Timestamp};
use throng_fleet::replica::{Generation, ReplicaError, ReplicaErrorKind, ReplicaRequest, TimeLimits};
use throng_store::ApiKey;
use tokio::time::Instant;

use self::admitted::Admitted;
use crate::config::OverloadConfig;
use throng_api::{ApiError, ServiceHeaders};

pub(crate) use self::scale::Scale;
pub(crate) use self::urgency::Urgency;

/// The gate of one model.
#[derive(Debug)]
pub(crate) struct OverloadControl {
    config: OverloadConfig,
    origin: Instant,
    /// `None` if every request is admitted.
    gate: Option<Mutex<Gate>>,
}

impl OverloadControl {
    /// Creates the control of a configuration.
    pub fn new(config: &OverloadConfig) -> Self {
        let gate =
            || Mutex::new(Gate::new(GateConfig { max_wait: Nanos::from_ms(config.max_queue_wait_ms) }));
        Self {
            config: config.clone(),
            origin: Instant::now(),
            gate: (config.max_queue_wait_ms > 0).then(gate),
        }
    }

    /// The class that a request names, bounded by its key's, and its deadline.
    ///
    /// # Errors
    /// 400 for invalid headers.
    pub fn urgency(
        &self,
        key: Option<&ApiKey>,
        ask: &ServiceHeaders,
        arrived: Instant,
    ) -> Result<Urgency, ApiError> {
        ask.check()?;
        let of_key = key.and_then(|key| {
            [&key.prefix, &key.project, &key.organisation]
                .into_iter()
                .find_map(|name| self.config.classes.get(name.as_str()))
        });
        let most_urgent: ServiceClass = of_key.copied().unwrap_or(self.config.most_urgent_class).into();
        Ok(Urgency {
            class: ask.class.unwrap_or_default().max(most_urgent),
            deadline: self.deadline(ask).map(|deadline| arrived + deadline),
        })
    }

    fn deadline(&self, ask: &ServiceHeaders) -> Option<Duration> {
        ask.deadline.or(limit(self.config.default_deadline_ms))
    }

    /// Time limits of a request with these service headers.
    pub fn time_limits(&self, ask: &ServiceHeaders) -> TimeLimits {
        TimeLimits {
            first_token: limit(self.config.first_token_timeout_ms),
            idle: limit(self.config.idle_timeout_ms),
            total: limit(self.config.total_timeout_ms).into_iter().chain(self.deadline(ask)).min(),
        }
    }

    /// Checks whether the shortest request could enter now.
    ///
    /// # Errors
    /// Errors of [`Self::start`].
    pub fn check(
        &self,
        tenant: &TenantId,
        urgency: Urgency,
        machine: Option<ServiceRate>,
    ) -> Result<(), ReplicaError> {
        let Some(gate) = &self.gate else { return Ok(()) };
        let (now, mut gate) = (self.now(), lock(gate));
        gate.set_machine(machine);
        gate.check(&urgency.ask(tenant, (1, 0, 1)), now).map_err(refusal)
    }

    /// Predicted wait of one more request; zero without a gate.
    pub fn predicted_wait(&self, machine: ServiceRate) -> Nanos {
        let Some(gate) = &self.gate else { return Nanos(0) };
        let mut gate = lock(gate);
        gate.set_machine(Some(machine));
        gate.predicted_wait()
    }

    /// Submits a request with `generate` if the gate admits it at the speed of `machine`.
    ///
    /// # Errors
    /// [`ReplicaErrorKind::Overloaded`] or [`ReplicaErrorKind::DeadlineTooShort`] if it is refused; the
    /// errors of `generate`.
    pub async fn start<F>(
        self: Arc<Self>,
        request: ReplicaRequest,
        urgency: Urgency,
        machine: Option<ServiceRate>,
        generate: impl FnOnce(ReplicaRequest) -> F,
    ) -> Result<Box<dyn Generation>, ReplicaError>
    where
        F: Future<Output = Result<Box<dyn Generation>, ReplicaError>>,
    {
        let n = request.n_continuations();
        let ask = urgency.ask(&request.tenant, (n, request.prompt.len() as u64, request.sampling.max_tokens));
        let Some(ticket) = self.admit(&ask, machine)? else { return generate(request).await };
        // From here on it is given back whatever happens.
        let place = Place { control: self.clone(), ticket: Some(ticket) };
        let generation = generate(request).await?;
        Ok(Box::new(Admitted::new(generation, place, n)))
    }

    fn admit(
        &self,
        ask: &AdmissionRequest,
        machine: Option<ServiceRate>,
    ) -> Result<Option<Ticket>, ReplicaError> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let (now, mut gate) = (self.now(), lock(gate));
        gate.set_machine(machine);
        gate.admit(ask, now).map(Some).map_err(refusal)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_ns(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A request's place behind the gate, released when it is dropped.
#[derive(Debug)]
struct Place {
    control: Arc<OverloadControl>,
    ticket: Option<Ticket>,
}

impl Place {
    fn first_token(&mut self) {
        let now = self.control.now();
        if let (Some(gate), Some(ticket)) = (&self.control.gate, &mut self.ticket) {
            lock(gate).first_token(ticket, now);
        }
    }

    fn end(&mut self, n_output: u64, is_whole: bool) {
        if let (Some(gate), Some(ticket)) = (&self.control.gate, self.ticket.take()) {
            lock(gate).end(ticket, n_output, is_whole);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end(0, false);
    }
}

/// A limit in ms; `None` for 0.
fn limit(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(overloaded: Overloaded) -> ReplicaError {
    let ms = |time: Nanos| time.0.div_ceil(1_000_000);
    let (kind, message) = match overloaded {
        Overloaded::Busy { wait, retry_after } => (
            ReplicaErrorKind::Overloaded { retry_after_ms: ms(retry_after) },
            format!("it would wait for about {} ms", ms(wait)),
        ),
        Overloaded::TooSlow { needed } => (
            ReplicaErrorKind::DeadlineTooShort { needed_ms: ms(needed) },
            format!("it needs about {} ms", ms(needed)),
        ),
    };
    ReplicaError { kind, retryable: false, message }
}
