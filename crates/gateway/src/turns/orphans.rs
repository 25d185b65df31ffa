//! Responses whose process has died while generating them: another process of the same store answers them.
//! Does not generate them itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;
use throng_core::request::TenantId;
use throng_http::memory::Part;
use throng_state::responses::{Orphan, Responses};
use throng_store::ClaimBeat;
use tokio::time::{Instant, sleep};

use super::Turn;
use super::background::go_on;
use crate::app::App;
use crate::caller::Caller;
use crate::config::PARSE_FACTOR;
use crate::generate::{Target, UnreadRequest, generate};
use crate::kept::tenant_of;
use crate::rejection::memory_full;
use throng_api::{ApiError, ReadOptions};
use throng_auth::Tenant;

/// Interval of the searches for such responses.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Time without renewal of the claim after which a process counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(6);
/// Maximum number of responses that are checked at a time.
const MAX_SEEN: usize = 1_000;

/// Last renewal of each response's claim, with the time of its first observation.
type Seen = BTreeMap<u64, (Option<ClaimBeat>, Instant)>;

/// Answers responses whose process has died, until the server ends.
pub(crate) async fn adopt_orphans(app: Weak<App>) {
    let mut seen = Seen::new();
    loop {
        sleep(LOOK_INTERVAL).await;
        let Some(app) = app.upgrade() else { return };
        let Some(responses) = app.policy.responses(None).filter(|_| !app.is_draining()) else { continue };
        // What cannot be looked at now is looked at the next time.
        let Ok(pending) = responses.pending(0, MAX_SEEN).await else { continue };
        let now = Instant::now();
        let mut still = Seen::new();
        for object in pending {
            let since = match seen.get(&object.number) {
                Some((beat, since)) if *beat == object.beat => *since,
                _ => now,
            };
            if now - since < DEAD_AFTER {
                still.insert(object.number, (object.beat, since));
                continue;
            }
            if let Ok(Some(orphan)) = responses.adopt(&object.key, object.beat.as_ref()).await {
                tracing::info!(response = orphan.response.id(), "a response goes on whose process has died");
                tokio::spawn(answer(app.clone(), responses.clone(), orphan));
            }
        }
        seen = still;
    }
}

async fn answer(app: Arc<App>, responses: Responses, orphan: Orphan) {
    if let Err(error) = begin(&app, &orphan).await {
        tracing::warn!(%error, response = orphan.response.id(), "a response cannot go on");
        // It fails for its client too, rather than being tried for ever.
        drop(responses.fail(&orphan.response, &error).await);
    }
}

async fn begin(app: &Arc<App>, orphan: &Orphan) -> Result<(), ApiError> {
    let tenant = orphan.response.tenant();
    // Servers of an older version have not written down who has asked.
    let key_holder = match &orphan.request.principal {
        Value::Null => Tenant::without_key(TenantId(Arc::from(tenant))),
        principal => tenant_of(app, tenant, principal)?,
    };
    let Some(responses) = app.responses(&key_holder) else { return Ok(()) };
    let Some(turn) = Turn::of_orphan(app, responses.clone(), orphan).await? else { return Ok(()) };
    if turn.parameters.names_servers {
        return Err(ApiError::tools_called_already());
    }
    let caller = Caller::new(&HeaderMap::new(), "");
    caller.set_tenant(key_holder);
    let caller = Arc::new(caller);
    let (body, memory) = (orphan.request.body.clone(), app.work.memory.clone());
    let n_bytes = body.len();
    let reading = turn.clone();
    let image_hosts = app.image_hosts.clone();
    let options = ReadOptions { takes_images: true, image_hosts, ..ReadOptions::default() };
    let read = move || {
        let reserved = memory.reserve(Part::Bodies, n_bytes * (PARSE_FACTOR + 1)).map_err(memory_full)?;
        Ok((reading.parse(body.as_bytes(), &options)?, reserved))
    };
    let target = Target::Last(orphan.model.clone());
    let started = generate(app, &caller, target, UnreadRequest { n_bytes, read }).await?;
    go_on(app, caller, started, turn, (responses, orphan.response.clone()));
    Ok(())
}
