//! The residency rule of a request's organisation: which regions the request may go to, checked before it is sent anywhere. Does not know where
//! replicas are.

use std::sync::Arc;

use crate::connection::RequestContext;
use crate::dispatch::{Bound, Dispatcher};
use crate::metrics::ModelMetrics;
use crate::openai::ApiError;

/// What a rule binds the request to; `None` without a rule.
///
/// # Errors
/// 403 `region_not_permitted` when none of the model's replicas is in a permitted region.
pub(crate) fn check_regions(
    dispatcher: &Dispatcher,
    metrics: &ModelMetrics,
    context: &RequestContext,
) -> Result<Option<Arc<Bound>>, ApiError> {
    let tenant = context.key_holder();
    let organisation = tenant.key.as_deref().map(|key| key.organisation.as_str());
    let Some(regions) = dispatcher.permitted_regions(organisation) else { return Ok(None) };
    let (model, [n_placed, n_refused]) = metrics.residency();
    let bound = Bound {
        regions,
        organisation: organisation.unwrap_or("none").into(),
        request: context.id_text().into(),
        model: model.into(),
        n_placed,
        n_refused,
    };
    if dispatcher.excludes_all(&bound.regions, context.destination.replica()) {
        metrics.rejected("region_not_permitted");
        bound.refused("no replica of the model is in a permitted region");
        return Err(ApiError::region_not_permitted());
    }
    Ok(Some(Arc::new(bound)))
}
