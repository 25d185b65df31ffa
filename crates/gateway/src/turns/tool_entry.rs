//! Ledger entry of a tool's call: its name, duration and outcome, without tokens.

use std::sync::Arc;

use throng_store::Outcome;
use throng_tools::PendingCall;

use crate::caller::Caller;
use throng_metering::ledger::{Counted, Ledger, Meter};

/// Entry of a running call, recorded as aborted if it is dropped.
#[derive(Debug)]
pub(super) struct ToolEntry(Meter);

impl ToolEntry {
    /// Begins the entry of a call; `None` if it is not counted.
    pub fn begin(ledger: &Arc<Ledger>, caller: &Caller, call: &PendingCall) -> Option<Self> {
        let (tenant, name) = (caller.key_holder(), call.ledger_name());
        let counted = Counted {
            tenant: &tenant.id.0,
            key: tenant.key.as_deref(),
            scopes: &[],
            request_id: caller.id_text(),
            user: caller.user().unwrap_or_default(),
            models: [&name, &name],
            prompt_tokens: 0,
            generated_tokens: 0,
        };
        let mut meter = ledger.begin(&counted).ok().flatten()?;
        meter.begin();
        Some(Self(meter))
    }

    /// Ends the entry.
    pub fn end(mut self, outcome: Outcome) {
        self.0.end(outcome);
    }
}
