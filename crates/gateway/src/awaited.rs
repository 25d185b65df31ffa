//! Workers and engines of a fleet that have not reported their models yet, and the errors for requests for
//! such models. Does not know the causes.

use std::sync::Arc;

use throng_api::ApiError;
use throng_fleet::replica::Links;
use throng_fleet::upstream::UpstreamModels;

use throng_http::retry_after::retry_after_s;

/// Numbers of workers and engines that have not reported their models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Number of workers and engines that have neither answered nor failed.
    n_untried: usize,
    /// Number of workers that cannot be reached or used.
    n_workers: usize,
    /// Number of engines that cannot be reached or used.
    n_engines: usize,
}

/// Workers and engines of the fleet.
#[derive(Debug, Clone, Default)]
pub(crate) struct FleetMembers {
    /// Workers of the gateway.
    pub workers: Arc<Links>,
    /// Upstream engines of the gateway.
    pub engines: Arc<UpstreamModels>,
}

impl FleetMembers {
    /// Members that have not reported their models, if there are any.
    pub fn awaited(&self) -> Option<Awaited> {
        let awaited = self.all_awaited();
        (awaited.n() > 0).then_some(awaited)
    }

    fn all_awaited(&self) -> Awaited {
        let links = self.workers.now();
        let (tried, untried): (Vec<_>, Vec<_>) =
            links.iter().filter(|link| !link.was_described()).partition(|link| link.was_tried());
        let (n_idle, n_engines) = self.engines.n_idle_and_failing();
        let n_untried = untried.len() + n_idle - n_engines;
        Awaited { n_untried, n_workers: tried.len(), n_engines }
    }

    /// Error for any request while no model is available.
    pub fn refusal(&self) -> ApiError {
        self.all_awaited().refusal(None)
    }
}

impl Awaited {
    fn n(&self) -> usize {
        self.n_untried + self.n_workers + self.n_engines
    }

    /// Error for a request for a model that no member serves. With workers awaited the model is not ready; a
    /// failing engine is a fault.
    pub fn refusal(&self, model: Option<&str>) -> ApiError {
        let has_failed = self.n_untried + self.n_workers == 0 && self.n_engines > 0;
        let mut parts = Vec::new();
        for (n, one, many) in [
            (self.n_untried, "is being asked", "are being asked"),
            (self.n_workers, "worker cannot be used", "workers cannot be used"),
            (self.n_engines, "engine cannot be used", "engines cannot be used"),
        ] {
            if n > 0 {
                parts.push(format!("{n} {}", if n == 1 { one } else { many }));
            }
        }
        let what = if parts.is_empty() { "none has been found".to_owned() } else { parts.join(", ") };
        ApiError::no_replica_known(model, &what, has_failed, retry_after_s())
    }
}
