//! How urgent a request is once it is known who asks. Does not know settings and headers.

use throng_core::fleet::overload::{AdmissionRequest, ServiceClass};
use throng_core::request::TenantId;
use throng_core::time::Nanos;
use tokio::time::Instant;

/// The class of a request, and when its answer is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Urgency {
    /// Class that it is granted.
    pub class: ServiceClass,
    /// Nobody wants its answer later.
    pub deadline: Option<Instant>,
}

impl Urgency {
    /// Question to the gate about a request of this tenant with so many sequences, prompt tokens, and output
    /// tokens of each sequence.
    pub fn ask(
        self,
        tenant: &TenantId,
        (n_sequences, n_prompt_tokens, max_tokens): (u32, u64, u32),
    ) -> AdmissionRequest {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        AdmissionRequest {
            tenant: tenant.clone(),
            class: self.class,
            n_sequences,
            n_prompt_tokens,
            max_tokens,
            deadline: left.map(Nanos::from),
        }
    }
}
