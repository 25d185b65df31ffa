//! Metrics of workers and upstream engines, read at each scrape. Keeps nothing.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use throng_core::fleet::health::State;

use crate::metrics::AtScrape;

/// State of one worker or engine for one model.
#[derive(Debug, Clone)]
pub struct EngineStatus {
    /// First name of the model.
    pub model_name: String,
    /// Name of the engine.
    pub replica: String,
    /// Health, which determines whether the engine gets requests.
    pub state: State,
    /// Number of this gateway's requests that the engine runs.
    pub n_running: usize,
}

/// Collector that reads the engines' states at each scrape.
#[derive(Debug)]
pub(in crate::metrics) struct EngineStatusCollector(pub AtScrape<EngineStatus>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplicaLabels {
    model_name: String,
    replica: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    model_name: String,
    replica: String,
    state: &'static str,
}

impl Collector for EngineStatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let engines = self.0.list();
        let help = "1 for the state that a worker or an upstream engine is in";
        let mut states = encoder.encode_descriptor("throng_replica_state", help, None, MetricType::Gauge)?;
        for EngineStatus { model_name, replica, state, .. } in &engines {
            for known in State::ALL {
                let (model_name, replica) = (model_name.clone(), replica.clone());
                let labels = StateLabels { model_name, replica, state: known.name() };
                states.encode_family(&labels)?.encode_gauge(&i64::from(*state == known))?;
            }
        }
        let help = "Sequences that a worker, or requests that an upstream engine runs for this gateway";
        let mut running = encoder.encode_descriptor(
            "throng_replica_num_requests_running",
            help,
            None,
            MetricType::Gauge,
        )?;
        for EngineStatus { model_name, replica, n_running, .. } in engines {
            let labels = ReplicaLabels { model_name, replica };
            running.encode_family(&labels)?.encode_gauge(&(n_running as i64))?;
        }
        Ok(())
    }
}
