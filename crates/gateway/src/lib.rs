//! The OpenAI-compatible gateway: one request's way from socket to tokens and back.
//!
//! A [`Gateway`] holds the models and answers on a socket until it is told to end. It does not know how models
//! compute: it hands token ids to engines and gets token ids back.
#![forbid(unsafe_code)]

mod adapters;
mod aliases;
mod answer;
mod app;
mod auth;
mod awaited;
mod body_lines;
mod config;
mod connection;
mod constraint;
mod dispatch;
mod fleet;
mod foreign;
mod gateway;
mod generation;
mod held_bytes;
mod http_error;
mod idempotency;
mod ledger;
mod limits;
mod loading;
mod metrics;
mod model_names;
mod moderation;
mod observation;
mod on_demand;
pub mod openai;
mod overload;
mod pooling;
mod pooling_model;
mod regions;
mod replica;
mod response_cache;
mod retry_after;
mod router;
mod routes;
mod served_model;
mod server;
mod worker;

pub use adapters::{AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter};
pub use auth::{IssuerKeys, KeySetError, StoredKeys};
pub use config::{
    AccessConfig, ApiConfig, AutoscaleSection, ClaimNames, ClassSetting, ClassifierConfig, GatewayConfig,
    ModelAlias, ModelPrice, ModerationConfig, ModerationRule, ObservabilityConfig, OnDemandConfig, OnFailure,
    OnRequest, OverloadConfig, ResidencyRule, ResponseCacheConfig, RoutingConfig, RoutingPolicy, Secret,
    SemanticCacheConfig, SemanticMode, ServerConfig, ShadowConfig, TokenConfig, WeightedModel,
};
pub use constraint::{GrammarConstraint, ModelGrammars};
pub use fleet::{Fleet, FleetError, KubernetesApi, ReplicaConfig};
pub use gateway::{Gateway, GatewayError, Loading};
pub use held_bytes::HeldBytes;
pub use ledger::{Ledger, LedgerError};
pub use limits::SharedLimits;
pub use metrics::ProcessFacts;
pub use observation::{GenerationReport, RequestObserver, RequestPhase, RequestReport, TraceParent};
pub use on_demand::{ModelLoader, OnDemandModel, OnDemandModels};
pub use pooling_model::{LabelActivation, PoolingModel, PoolingOutput};
pub use replica::{InvalidAddress, TokenReport, WorkerAddress};
pub use served_model::ServedModel;
pub use throng_http::{ClientCertificates, Listener, Shutdown, TlsConfig, TlsError};
pub use worker::{Worker, WorkerModel};
