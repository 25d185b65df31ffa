//! The OpenAI-compatible gateway: one request's way from socket to tokens and back.
//!
//! A [`Gateway`] holds the models and answers on a socket until its shutdown. It does not know how models
//! compute: it hands token ids to engines and gets token ids back.
#![forbid(unsafe_code)]

mod adapter_errors;
mod aliases;
mod app;
mod awaited;
mod batches;
mod caller;
mod config;
mod gateway;
mod generate;
mod generation;
mod idempotency;
mod image_input;
mod kept;
mod learned_model;
mod limits;
mod loading;
mod model_names;
mod moderation;
mod on_demand;
mod overload;
mod plan_page;
mod policy;
mod pooling;
mod pooling_model;
mod regions;
mod rejection;
mod router;
mod routes;
mod served_model;
mod server;
mod turns;
mod upstream;
mod worker;

pub use config::{
    AccessConfig, ApiConfig, AutoscaleSection, ClaimNames, ClassSetting, ClassifierConfig, GatewayConfig,
    ModelAlias, ModerationConfig, ModerationRule, ObservabilityConfig, OnDemandConfig, OnFailure, OnRequest,
    OverloadConfig, ResidencyRule, ResponseCacheConfig, RoutingConfig, RoutingPolicy, SemanticCacheConfig,
    SemanticMode, ServerConfig, ShadowConfig, StateConfig, TokenConfig, WeightedModel,
};
pub use gateway::{Gateway, GatewayError, Loading};
pub use image_input::{ImageInput, Misplaced};
pub use limits::SharedLimits;
pub use on_demand::{FileProgress, ModelLoader, OnDemandModel, OnDemandModels, PullFault};
pub use plan_page::MakePlanPage;
pub use pooling_model::{LabelActivation, PoolingModel, PoolingOutput};
pub use served_model::ServedModel;
pub use throng_auth::{IssuerKeys, KeySetError, StoredKeys};
pub use throng_fleet::adapters::{
    AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter,
};
pub use throng_fleet::worker::WorkerModel;
pub use throng_fleet::{BlockPuller, Fleet, FleetError, KubernetesApi, PeerSettings, ReplicaConfig, Secret};
pub use throng_http::{ClientCertificates, Listener, Shutdown, TlsConfig, TlsError};
pub use throng_metering::HeldBytes;
pub use throng_metering::ledger::{Ledger, LedgerError, ModelPrice};
pub use throng_metering::metrics::ProcessFacts;
pub use throng_metering::observation::{
    GenerationReport, RequestObserver, RequestPhase, RequestReport, TraceParent,
};
pub use worker::Worker;
