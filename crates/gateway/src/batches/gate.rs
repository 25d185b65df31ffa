//! Decides when a line of a batch may begin: while no other request is computed, or as the only one. Does
//! not know lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::app::App;

/// Interval at which running requests are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Gate through which lines begin.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Lock that lets lines begin one after the other, so that each counts those before it.
    turn: Mutex<()>,
    n_lines: Arc<AtomicUsize>,
}

/// A running line, counted until it is dropped.
#[derive(Debug)]
pub(super) struct RunningLine(Arc<AtomicUsize>);

impl Drop for RunningLine {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Gate {
    /// Waits until a line may begin.
    pub async fn enter(&self, app: &App) -> RunningLine {
        let _turn = self.turn.lock().await;
        loop {
            let n_lines = self.n_lines.load(Ordering::Acquire);
            if n_lines == 0 || (n_running(app) <= n_lines && n_waiting(app) == 0) {
                self.n_lines.fetch_add(1, Ordering::AcqRel);
                return RunningLine(self.n_lines.clone());
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

fn n_running(app: &App) -> usize {
    let routes = app.models.router.routes();
    routes.iter().flat_map(|route| route.loads()).map(|load| load.n_running).sum()
}

fn n_waiting(app: &App) -> usize {
    let routes = app.models.router.routes();
    routes.iter().flat_map(|route| route.loads()).map(|load| load.n_waiting).sum()
}
