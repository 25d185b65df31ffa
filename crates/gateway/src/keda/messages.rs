//! The messages of KEDA's external scalers (`pkg/scalers/externalscaler/externalscaler.proto` of KEDA 2). Does not know what is scaled.

use std::collections::BTreeMap;

/// Which trigger of which `ScaledObject` asks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScaledObjectRef {
    /// Its name …
    #[prost(string, tag = "1")]
    pub name: String,
    /// … and its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The trigger's metadata.
    #[prost(btree_map = "string, string", tag = "3")]
    pub scaler_metadata: BTreeMap<String, String>,
}

/// Whether there should be any replica.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct IsActiveResponse {
    /// Above zero.
    #[prost(bool, tag = "1")]
    pub result: bool,
}

/// The metrics of a trigger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricSpecResponse {
    /// Each with its target.
    #[prost(message, repeated, tag = "1")]
    pub metric_specs: Vec<MetricSpec>,
}

/// A metric and what it should be for each replica.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricSpec {
    /// Its name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// The target as an integer, for versions of KEDA that do not read `target_size_float`.
    #[prost(int64, tag = "2")]
    pub target_size: i64,
    /// The target.
    #[prost(double, tag = "3")]
    pub target_size_float: f64,
}

/// Asks for the value of a metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsRequest {
    /// Scaled object.
    #[prost(message, optional, tag = "1")]
    pub scaled_object_ref: Option<ScaledObjectRef>,
    /// The metric.
    #[prost(string, tag = "2")]
    pub metric_name: String,
}

/// Values of metrics.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsResponse {
    /// Each with its name.
    #[prost(message, repeated, tag = "1")]
    pub metric_values: Vec<MetricValue>,
}

/// The value of a metric over all replicas.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// The value as an integer, for versions of KEDA that do not read `metric_value_float`.
    #[prost(int64, tag = "2")]
    pub metric_value: i64,
    /// The value.
    #[prost(double, tag = "3")]
    pub metric_value_float: f64,
}
