//! Metrics of model aliases. Does not know how models are chosen.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    alias: String,
    model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    alias: String,
    model_name: String,
    outcome: &'static str,
}

/// Counters of aliases, shared by clones. Labels contain only the operator's names, never those of clients.
#[derive(Debug, Clone)]
pub struct AliasMetrics {
    requests: Family<Labels, Counter>,
    failed_over: Family<Labels, Counter>,
    copies: Family<OutcomeLabels, Counter>,
    rollout_percent: Family<Labels, Gauge>,
    rollouts: Family<OutcomeLabels, Counter>,
}

impl AliasMetrics {
    /// Registers the counters at a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let (requests, failed_over, copies, rollout_percent, rollouts) = Default::default();
        let this = Self { requests, failed_over, copies, rollout_percent, rollouts };
        let help = "Requests for an alias by the model that they were sent to first";
        registry.register("throng_alias_requests", help, this.requests.clone());
        let help =
            "Requests for an alias that went to another model because this one failed or is in other regions";
        registry.register("throng_alias_fallbacks", help, this.failed_over.clone());
        let help = "Copies of requests for an alias whose answers nobody gets: answered, failed, or not made because too many run";
        registry.register("throng_shadow_requests", help, this.copies.clone());
        let help = "Requests, of a hundred, that the latest roll-out gives to the new version";
        registry.register("throng_rollout_percent", help, this.rollout_percent.clone());
        let help = "Roll-outs that were completed, or rolled back and why";
        registry.register("throng_rollouts", help, this.rollouts.clone());
        this
    }

    /// Counts a request that an alias sends to this model.
    pub fn chosen(&self, alias: &str, model: &str) {
        self.requests.get_or_create(&labels(alias, model)).inc();
    }

    /// Counts a request that continues with another model because this one failed.
    pub fn failed_over(&self, alias: &str, model: &str) {
        self.failed_over.get_or_create(&labels(alias, model)).inc();
    }

    /// Counts the outcome of a shadow request: `answered`, `failed` or `dropped`.
    pub fn copied(&self, alias: &str, model: &str, outcome: &'static str) {
        self.copies.get_or_create(&outcome_labels(alias, model, outcome)).inc();
    }

    /// Sets the traffic share of a roll-out's new version, in percent.
    pub fn rollout_percent(&self, alias: &str, model: &str, percent: u32) {
        self.rollout_percent.get_or_create(&labels(alias, model)).set(percent.into());
    }

    /// Counts the end of a roll-out.
    pub fn rollout_ended(&self, alias: &str, model: &str, outcome: &'static str) {
        self.rollouts.get_or_create(&outcome_labels(alias, model, outcome)).inc();
    }
}

fn labels(alias: &str, model: &str) -> Labels {
    Labels { alias: alias.to_owned(), model_name: model.to_owned() }
}

fn outcome_labels(alias: &str, model: &str, outcome: &'static str) -> OutcomeLabels {
    OutcomeLabels { alias: alias.to_owned(), model_name: model.to_owned(), outcome }
}
