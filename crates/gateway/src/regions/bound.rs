//! A request that is bound to regions, and the audit of its destinations. Does not know the rules and the
//! choice of replicas.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use throng_core::fleet::routing::Region;
use throng_fleet::dispatch::RegionBound;
use throng_store::AuditEvent;

use throng_metering::ledger::{Audited, Ledger};

/// The regions of one request, with the audit: each replica that it is sent to, and each refusal, is logged
/// and counted.
#[derive(Debug)]
pub(super) struct Bound {
    /// Regions that the request is bound to.
    pub regions: Arc<[Region]>,
    /// Organisation; `none` for a client without one.
    pub organisation: Box<str>,
    /// Id of the request.
    pub request: Box<str>,
    /// Model of the request.
    pub model: Box<str>,
    /// Counter of bound requests that were sent to a replica.
    pub n_placed: Counter,
    /// Counter of bound requests that were refused.
    pub n_refused: Counter,
    /// Ledger whose database has the audit, if there is one.
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
