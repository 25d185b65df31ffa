//! The OpenAI-compatible gateway: one request's way from socket to tokens and back.
//!
//! A [`Gateway`] holds the models and answers on a socket until it is told to end. It does not know how
//! models compute: it hands token ids to engines and gets token ids back.
#![forbid(unsafe_code)]

mod adapter_errors;
mod aliases;
mod app;
mod auth;
mod awaited;
mod batches;
mod caller;
mod config;
mod gateway;
mod generate;
mod generation;
mod held_bytes;
mod idempotency;
mod ignored_log;
mod kept;
mod learned_model;
mod ledger;
mod limits;
mod loading;
mod metrics;
mod model_names;
mod moderation;
mod observation;
mod on_demand;
mod overload;
mod policy;
mod pooling;
mod pooling_model;
mod regions;
mod rejection;
mod retry_after;
mod router;
mod routes;
mod served_model;
mod server;
mod turns;
mod upstream;
mod usage_report;
mod worker;

pub use auth::{IssuerKeys, KeySetError, StoredKeys};
pub use config::{
    AccessConfig, ApiConfig, AutoscaleSection, ClaimNames, ClassSetting, ClassifierConfig, GatewayConfig,
    ModelAlias, ModelPrice, ModerationConfig, ModerationRule, ObservabilityConfig, OnDemandConfig, OnFailure,
    OnRequest, OverloadConfig, ResidencyRule, ResponseCacheConfig, RoutingConfig, RoutingPolicy,
    SemanticCacheConfig, SemanticMode, ServerConfig, ShadowConfig, StateConfig, TokenConfig, WeightedModel,
};
pub use gateway::{Gateway, GatewayError, Loading};
pub use held_bytes::HeldBytes;
pub use ledger::{Ledger, LedgerError};
pub use limits::SharedLimits;
pub use metrics::ProcessFacts;
pub use observation::{GenerationReport, RequestObserver, RequestPhase, RequestReport, TraceParent};
pub use on_demand::{FileProgress, ModelLoader, OnDemandModel, OnDemandModels, PullFault};
pub use pooling_model::{LabelActivation, PoolingModel, PoolingOutput};
pub use served_model::ServedModel;
pub use throng_fleet::adapters::{
    AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter,
};
pub use throng_fleet::worker::WorkerModel;
pub use throng_fleet::{Fleet, FleetError, KubernetesApi, ReplicaConfig, Secret};
pub use throng_http::{ClientCertificates, Listener, Shutdown, TlsConfig, TlsError};
pub use worker::Worker;
