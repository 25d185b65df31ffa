//! Independent requests: arrivals that do not wait for answers, lengths from distributions.

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use throng_core::time::{Nanos, Timestamp};

use super::Workload;
use super::arrivals::{ArrivalProcess, Arrivals};
use super::request::{SimRequest, Span, TimedRequest, content_id};
use crate::distribution::Distribution;
use crate::error::SimError;

/// Kinds of content of generated requests.
const SHARED: u64 = 1;
const PROMPT: u64 = 2;
const OUTPUT: u64 = 3;

/// Lengths of independent requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestShape {
    /// Tokens of the prompt, without the shared prefix.
    pub prompt: Distribution,
    /// Number of output tokens.
    pub output: Distribution,
    /// Number of tokens that all prompts begin with.
    #[serde(default)]
    pub shared_prefix: u32,
    /// Number of tenants, which send requests equally often.
    #[serde(default = "one")]
    pub n_tenants: u32,
}

fn one() -> u32 {
    1
}

impl RequestShape {
    /// Requests of one tenant with these lengths.
    pub fn new(prompt: Distribution, output: Distribution) -> Self {
        Self { prompt, output, shared_prefix: 0, n_tenants: 1 }
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// The error names the field.
    pub fn check(&self) -> Result<(), SimError> {
        self.prompt.check("prompt")?;
        self.output.check("output")?;
        match self.n_tenants {
            0 => Err(SimError::setting("n_tenants", "there must be at least one")),
            _ => Ok(()),
        }
    }

    /// Request number `index` of a workload with this seed.
    pub(super) fn request(&self, seed: u64, index: u64, rng: &mut Rng) -> SimRequest {
        let n_prompt = self.prompt.sample_tokens(rng, u32::from(self.shared_prefix == 0));
        let n_output = self.output.sample_tokens(rng, 1);
        let shared = Span { content: content_id(seed, SHARED, 0), n_tokens: self.shared_prefix };
        let own = Span { content: content_id(seed, PROMPT, index), n_tokens: n_prompt };
        let output = Span { content: content_id(seed, OUTPUT, index), n_tokens: n_output };
        let prompt: Vec<Span> = [shared, own].into_iter().filter(|span| span.n_tokens > 0).collect();
        SimRequest { tenant: rng.u32(0..self.n_tenants), ..SimRequest::new(prompt, output) }
    }
}

/// Independent requests until a time or a number of them is reached.
#[derive(Debug)]
pub struct OpenLoop {
    arrivals: Arrivals,
    shape: RequestShape,
    seed: u64,
    rng: Rng,
    n_made: u64,
    max_requests: u64,
    end: Timestamp,
}

impl OpenLoop {
    /// Requests of this shape that arrive by this process within `duration`.
    ///
    /// # Errors
    /// When a number cannot be one of a workload.
    pub fn new(
        process: ArrivalProcess,
        shape: RequestShape,
        duration: Nanos,
        seed: u64,
    ) -> Result<Self, SimError> {
        shape.check()?;
        let mut rng = Rng::with_seed(seed);
        let arrivals = Arrivals::new(process, rng.fork())?;
        let end = Timestamp::default() + duration;
        Ok(Self { arrivals, shape, seed, rng, n_made: 0, max_requests: u64::MAX, end })
    }

    /// Limits the workload to `n` requests.
    #[must_use]
    pub fn with_max_requests(self, n: u64) -> Self {
        Self { max_requests: n, ..self }
    }
}

impl Workload for OpenLoop {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        let at = self.arrivals.next_at();
        if at > self.end || self.n_made >= self.max_requests {
            return Ok(None);
        }
        let tag = self.n_made;
        self.n_made += 1;
        Ok(Some(TimedRequest { at, request: self.shape.request(self.seed, tag, &mut self.rng), tag }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_with_the_time_or_the_number_and_a_seed_repeats_them() {
        let make = |duration_ms| {
            let lengths = Distribution::Exponential { mean: 100.0 };
            let shape = RequestShape {
                shared_prefix: 32,
                n_tenants: 3,
                ..RequestShape::new(lengths.clone(), lengths)
            };
            let process = ArrivalProcess::Poisson { rate: 100.0 };
            OpenLoop::new(process, shape, Nanos::from_ms(duration_ms), 7).expect("valid")
        };
        let all = |mut workload: OpenLoop| -> Vec<TimedRequest> {
            std::iter::from_fn(|| workload.next_request().expect("no file")).collect()
        };
        let requests = all(make(10_000));
        assert!((800..1200).contains(&requests.len()), "{}", requests.len());
        assert_eq!(requests, all(make(10_000)));
        assert_eq!(all(make(10_000).with_max_requests(5)).len(), 5);
        let first = &requests[0].request.prompt[0];
        assert!(requests.iter().all(|timed| timed.request.prompt[0] == *first), "all share a prefix");
        assert!((0..3).all(|tenant| requests.iter().any(|timed| timed.request.tenant == tenant)));
    }
}
