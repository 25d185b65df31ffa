//! Number of workers that a model should have, decided by `core` from observations at each call. Starts
//! none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_core::fleet::autoscale::{Autoscaler, Observation};
use throng_core::time::{Nanos, Timestamp};
use throng_fleet::replica::{Load, Replica, Status};
use tokio::time::Instant;

use crate::config::AutoscaleSection;

use super::OverloadControl;

/// The decisions for one model.
#[derive(Debug)]
pub(crate) struct Scale {
    origin: Instant,
    autoscaler: Mutex<Autoscaler>,
    n_unserved: AtomicU64,
}

impl Scale {
    /// Creates the scale with checked bounds and targets.
    pub fn new(section: &AutoscaleSection) -> Self {
        let autoscaler = Mutex::new(Autoscaler::new(section.of_core()));
        Self { origin: Instant::now(), autoscaler, n_unserved: AtomicU64::new(0) }
    }

    /// Notes a request that found no worker.
    pub fn note_unserved(&self) {
        self.n_unserved.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of replicas that a model with these replicas should have; `overload` is the gate of its
    /// requests.
    pub fn decide(&self, replicas: &[Arc<dyn Replica>], overload: &OverloadControl) -> u32 {
        let ready = replicas.iter().filter(|replica| replica.status() == Status::Ready);
        let loads: Vec<_> = ready.map(|replica| replica.load()).collect();
        let sum = |of: fn(&Load) -> usize| loads.iter().map(of).sum::<usize>();
        let total_blocks = sum(|load| load.total_blocks);
        let machine = loads.iter().filter_map(|load| load.machine).reduce(|one, other| one.joined(other));
        let seen = Observation {
            n_replicas: loads.len() as u32,
            n_running: sum(|load| load.n_running) as u64,
            n_waiting: sum(|load| load.n_waiting) as u64,
            kv_use: sum(|load| load.used_blocks.min(load.total_blocks)) as f64 / total_blocks.max(1) as f64,
            predicted_ttft: machine.map_or(Nanos(0), |machine| overload.predicted_wait(machine)),
            n_unserved: self.n_unserved.load(Ordering::Relaxed),
        };
        let now = Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0);
        let mut autoscaler = self.autoscaler.lock().unwrap_or_else(PoisonError::into_inner);
        autoscaler.decide(Some(seen), now).unwrap_or_default()
    }
}
