//! A request that is bound to regions, and the audit of where it went. Does not know who binds it, nor how replicas are chosen.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use throng_core::routing::Region;
use throng_store::AuditEvent;

use crate::ledger::{Audited, Ledger};

/// The regions that one request is bound to. Each replica that it is sent to, and each refusal, is logged and counted.
#[derive(Debug)]
pub(crate) struct Bound {
    /// The only regions that it may go to.
    pub regions: Arc<[Region]>,
    /// Who asks; `none` for a client without an organisation.
    pub organisation: Box<str>,
    /// The request's id.
    pub request: Box<str>,
    /// The model that it is for.
    pub model: Box<str>,
    /// How often such requests were sent somewhere, …
    pub n_placed: Counter,
    /// … and how often they could not be.
    pub n_refused: Counter,
    /// Whose database has the audit, where there is one.
    pub ledger: Option<Arc<Ledger>>,
}

impl Bound {
    /// It is sent to this replica.
    pub(super) fn placed(&self, replica: &str, region: Option<&Region>) {
        self.n_placed.inc();
        let Self { organisation, request, model, .. } = self;
        let region = region.map_or("none", |region| &**region);
        self.tell(AuditEvent::Placed, [replica, region], "");
        tracing::info!(
            request,
            organisation,
            model,
            replica,
            region,
            "audit: a request bound to regions is sent to a replica"
        );
    }

    /// None of the replicas that it may go to has taken it in; `reason` says why.
    pub fn refused(&self, reason: &'static str) {
        self.n_refused.inc();
        self.tell(AuditEvent::Refused, ["", ""], reason);
        let Self { organisation, request, model, .. } = self;
        let regions = self.regions.join(",");
        tracing::warn!(
            request,
            organisation,
            model,
            regions,
            reason,
            "audit: a request bound to regions is refused"
        );
    }

    fn tell(&self, event: AuditEvent, place: [&str; 2], reason: &str) {
        let Some(ledger) = &self.ledger else { return };
        let Self { organisation, request, model, .. } = self;
        let permitted = &self.regions.join(",");
        ledger.audit(&Audited { event, request_id: request, organisation, model, permitted, place, reason });
    }
}
