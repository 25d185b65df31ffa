//! Class and deadline of a request whose caller is known. Does not know settings and headers.

use throng_core::fleet::overload::{AdmissionRequest, ServiceClass};
use throng_core::request::TenantId;
use throng_core::time::Nanos;
use tokio::time::Instant;

/// The class of a request, and its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Urgency {
    /// Class that the request is granted.
    pub class: ServiceClass,
    /// Time after which the answer is useless.
    pub deadline: Option<Instant>,
}

impl Urgency {
    /// Creates the question to the gate for a request of this tenant, with its numbers of sequences, of
    /// prompt tokens, and of output tokens of each sequence.
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
