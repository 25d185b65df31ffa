//! Regions that a request is bound to by the residency rule of its organisation and by its header, checked
//! before it is sent. Does not know the places of replicas.

use std::sync::Arc;

use throng_core::fleet::routing::Region;
use throng_fleet::dispatch::{Dispatcher, RegionBound};

use super::bound::Bound;
use crate::caller::Caller;
use throng_api::ApiError;
use throng_metering::ledger::Ledger;
use throng_metering::metrics::ModelMetrics;

/// Regions that the request is bound to; `None` if there is no restriction. A process that computes the model
/// itself (`is_remote` is false) and has no configured region ignores the header: the gateway that sent the
/// request has applied it.
///
/// # Errors
/// 403 `region_not_permitted` when none of the model's replicas is in a permitted region, 400 for an
/// invalid header.
pub(crate) fn check_regions(
    (dispatcher, is_remote): (&Dispatcher, bool),
    metrics: &ModelMetrics,
    caller: &Caller,
    ledger: Option<&Arc<Ledger>>,
) -> Result<Option<Arc<dyn RegionBound>>, ApiError> {
    let tenant = caller.key_holder();
    let organisation = tenant.key.as_deref().map(|key| key.organisation.as_str());
    let by_rule = dispatcher.permitted_regions(organisation);
    let by_header = caller.destination.regions()?.filter(|_| is_remote || dispatcher.has_region());
    let Some(regions) = both(by_rule, by_header) else { return Ok(None) };
    let (model, [n_placed, n_refused]) = metrics.residency();
    let bound = Bound {
        regions,
        organisation: organisation.unwrap_or("none").into(),
        request: caller.id_text().into(),
        model: model.into(),
        n_placed,
        n_refused,
        ledger: ledger.cloned(),
    };
    if dispatcher.excludes_all(&bound.regions, caller.destination.replica()) {
        metrics.rejected("region_not_permitted");
        bound.refused("no replica of the model is in a permitted region");
        return Err(ApiError::region_not_permitted());
    }
    Ok(Some(Arc::new(bound)))
}

/// Regions that a rule and a header both permit.
fn both(rule: Option<Arc<[Region]>>, header: Option<Vec<Region>>) -> Option<Arc<[Region]>> {
    match (rule, header) {
        (Some(rule), Some(header)) => {
            Some(rule.iter().filter(|&region| header.contains(region)).cloned().collect())
        }
        (rule, header) => rule.or_else(|| header.map(Arc::from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_narrows_a_rule() {
        let list = |names: &[&str]| names.iter().map(|&name| Region::from(name)).collect::<Vec<_>>();
        let rule = || Some(Arc::from(list(&["eu", "uk"])));
        assert_eq!(both(None, None), None);
        assert_eq!(both(rule(), None), rule());
        assert_eq!(both(None, Some(list(&["us"]))).as_deref(), Some(&list(&["us"])[..]));
        assert_eq!(both(rule(), Some(list(&["us", "uk"]))).as_deref(), Some(&list(&["uk"])[..]));
        assert_eq!(both(rule(), Some(list(&["us"]))).as_deref(), Some(&[][..]));
    }
}
