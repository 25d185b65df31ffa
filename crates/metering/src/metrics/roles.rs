//! Metrics of models whose replicas have roles: sequences and prompt tokens by role, and split requests. A
//! model without roles has none. Keeps nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use throng_fleet::replica::{Replica, SplitFallback};

use super::requests::ModelLabels;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    model_name: String,
    engine: u32,
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    model_name: String,
    engine: u32,
    role: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackLabels {
    model_name: String,
    engine: u32,
    role: &'static str,
    reason: &'static str,
}

type Replicas = [(ModelLabels, Arc<dyn Replica>)];

impl RoleLabels {
    fn new(labels: &ModelLabels, replica: &dyn Replica) -> Self {
        let ModelLabels { model_name, engine } = labels.clone();
        Self { model_name, engine, role: replica.role().name() }
    }
}

/// Encodes the metrics of the models whose replicas have roles.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, replicas: &Replicas) -> fmt::Result {
    let has_role = |(_, replica): &&(ModelLabels, Arc<dyn Replica>)| !replica.role().is_both();
    let models: BTreeSet<&str> =
        replicas.iter().filter(has_role).map(|(labels, _)| labels.model_name.as_str()).collect();
    if models.is_empty() {
        return Ok(());
    }
    let of_roles = || {
        let of_them = replicas.iter().filter(|(labels, _)| models.contains(labels.model_name.as_str()));
        of_them.map(|(labels, replica)| (RoleLabels::new(labels, &**replica), replica))
    };
    let (name, help) = ("throng_role_sequences", "Sequences of replicas, by the role of the replica");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (RoleLabels { model_name, engine, role }, replica) in of_roles() {
        let load = replica.load();
        for (state, n) in [("running", load.n_running), ("waiting", load.n_waiting)] {
            let labels = StateLabels { model_name: model_name.clone(), engine, role, state };
            metric.encode_family(&labels)?.encode_gauge(&(n as i64))?;
        }
    }
    let (name, help) = ("throng_role_prompt_tokens", "Computed prompt tokens, by the role of the replica");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, replica) in of_roles() {
        let n_tokens = replica.load().totals.prompt_tokens;
        metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&n_tokens, None)?;
    }
    let (name, help) = ("throng_split_requests", "Requests whose prompt another replica was asked for first");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, replica) in of_roles() {
        let Some(counts) = replica.splits() else { continue };
        metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&counts.n_split(), None)?;
    }
    let (name, help) =
        ("throng_split_early_tokens", "Prompt tokens taken over while later ones were computed elsewhere");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, replica) in of_roles() {
        let Some(counts) = replica.splits() else { continue };
        metric
            .encode_family(&labels)?
            .encode_counter::<ModelLabels, _, f64>(&counts.n_early_tokens(), None)?;
    }
    let (name, help) =
        ("throng_split_fallbacks", "Split requests that the replica of the answer computed alone");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (RoleLabels { model_name, engine, role }, replica) in of_roles() {
        let Some(counts) = replica.splits() else { continue };
        for fallback in SplitFallback::ALL {
            let reason = fallback.name();
            let labels = FallbackLabels { model_name: model_name.clone(), engine, role, reason };
            let n = counts.n_fallbacks(fallback);
            metric.encode_family(&labels)?.encode_counter::<ModelLabels, _, f64>(&n, None)?;
        }
    }
    Ok(())
}
