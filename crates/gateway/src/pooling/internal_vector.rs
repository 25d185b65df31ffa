//! Vectors that the server itself needs for a request: their tokens are counted for the caller, but not
//! against the limits of requests, and they are not observed as requests. Does not know their purpose.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::caller::Caller;
use crate::generation::{BegunPrompt, BlamedParams, Output, Prepared, Session, count};
use crate::limits::Charge;
use crate::regions::check_regions;
use crate::router::Route;
use throng_auth::Tenant;
use throng_metering::ledger::Ledger;

/// The vector of a pooling model for one text; `None` if that fails. Dropping the future ends the
/// computation, and its tokens so far are counted.
pub(crate) async fn internal_vector(
    (route, prepared): (Route, Prepared),
    caller: Arc<Caller>,
    tenant: Tenant,
    ledger: Option<Arc<Ledger>>,
) -> Option<Vec<f32>> {
    let dispatching = (&**route.replicas().dispatcher(), route.model.is_remote());
    let bound = check_regions(dispatching, &route.model.metrics, &caller, ledger.as_ref()).ok()?;
    let internal = Arc::new(caller.internal_request(tenant));
    let Prepared { mut requests, memory, .. } = prepared;
    let meter = ledger.map(|ledger| count(&route, &requests, &internal, &ledger)).transpose().ok()?.flatten();
    let mut charge = Charge::default().with_meter(meter);
    let request = requests.pop()?;
    let (n_tokens, sampling) = (request.prompt.len(), Arc::clone(&request.sampling));
    let generation = route.generate(request, None, bound, false).boxed().await.ok()?;
    charge.begin(n_tokens as u64);
    let prompt =
        BegunPrompt { generation, cache_use: None, n: 1, n_tokens, cache_marks: Vec::new(), sampling };
    let blamed = BlamedParams { prompt: "messages", constraint: None, replica: None };
    let session = Session::new(route.model.clone(), vec![prompt], blamed, None, memory, internal);
    let mut session = session.with_charge(charge);
    let mut vector = None;
    while let Some(output) = session.next().await {
        match output {
            Output::Failed(_) => return None,
            Output::Token { report, .. } => {
                vector = Some(report.top.iter().map(|element| element.logprob).collect());
            }
            Output::Prompt { .. } | Output::Finished { .. } => {}
        }
    }
    vector
}
