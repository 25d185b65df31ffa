//! A request that is bound to regions, and the audit of where it went. Does not know who binds it, nor how
//! replicas are chosen.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use throng_core::fleet::routing::Region;
use throng_fleet::dispatch::RegionBound;
use throng_store::AuditEvent;

use throng_metering::ledger::{Audited, Ledger};

/// The regions that one request is bound to. Each replica that it is sent to, and each refusal, is logged and
/// counted.
#[derive(Debug)]
pub(super) struct Bound {
    /// The only regions that it may go to.
    pub regions: Arc<[Region]>,
    /// Organisation; `none` for a client without one.
    pub organisation: Box<str>,
    /// The request's id.
    pub request: Box<str>,
    /// The model that it is for.
    pub model: Box<str>,
    /// Counts such requests that were sent somewhere.
    pub n_placed: Counter,
    /// Counts such requests that were not.
    pub n_refused: Counter,
    /// Ledger whose database has the audit, where there is one.
    pub ledger: Option<Arc<Ledger>>,
}

impl RegionBound for Bound {
    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn placed(&self, replica: &str, region: Option<&Region>) {
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

    fn refused(&self, reason: &'static str) {
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
}

impl Bound {
    fn tell(&self, event: AuditEvent, place: [&str; 2], reason: &str) {
        let Some(ledger) = &self.ledger else { return };
        let Self { organisation, request, model, .. } = self;
        let permitted = &self.regions.join(",");
        ledger.audit(&Audited { event, request_id: request, organisation, model, permitted, place, reason });
    }
}
