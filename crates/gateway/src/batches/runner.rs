//! Answers the batches of a database while the server has models.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use throng_http::Phase;
use throng_state::batches::{DEAD_AFTER, Runner, RunnerSettings};
use tokio::sync::watch;
use tokio::time::sleep;

use super::lines::LineAnswers;
use crate::app::App;

/// Interval of the checks for models and a database.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Answers batches until the server ends. Waits until models are loaded; returns at once without a database.
pub(crate) async fn answer_batches(loaded: Arc<OnceLock<Arc<App>>>, phase: watch::Receiver<Phase>) {
    let mut ending = phase.clone();
    let waiting = async {
        loop {
            if let Some(app) = loaded.get() {
                let store = app.policy.ledger.as_ref().and_then(|ledger| ledger.store());
                if let Some(store) = store {
                    return (app.clone(), store.clone());
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    };
    let (app, store) = tokio::select! {
        ready = waiting => ready,
        _ = ending.wait_for(|phase| *phase != Phase::Serving) => return,
    };
    let (stop, stopped) = watch::channel(false);
    let state = &app.config.state;
    let settings = RunnerSettings {
        max_lines: state.max_batch_lines,
        max_batches: state.max_batches,
        max_line_bytes: app.config.api.max_body_bytes,
        dead_after: DEAD_AFTER,
        quota: state.quota(),
    };
    let runner = Runner::new(store, Arc::new(LineAnswers::beside_others(app.clone())), settings, stopped);
    let end = async {
        let _ = ending.wait_for(|phase| *phase != Phase::Serving).await;
        let _ = stop.send(true);
    };
    tokio::join!(runner.run(), end);
}
