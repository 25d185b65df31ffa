//! The other end of the fleet's protocol: an engine behind an internal listener, for gateways. Tokens in, tokens out; the rules of
//! the public listener hold here too (sizes, times, floods), but nothing here is for clients. Does not know text, but for the
//! constraints that it compiles again.

mod generate;
mod generation_body;
mod routes;

use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use throng_engine::EngineHandle;
use throng_http::memory::MemoryBudget;
use throng_http::{ClientCertificates, Listener, Phase, Shutdown, Tls};
use throng_text::AnswerFormat;
use throng_wire::{Artifact, ArtifactKind, Description};
use tokio::sync::{Semaphore, watch};

use crate::adapters::{AdapterSettings, Adapters};
use crate::auth::ApiKeys;
use crate::config::GatewayConfig;
use crate::constraint::ModelGrammars;
use crate::gateway::{GatewayError, check_keys};
use crate::metrics::HttpMetrics;
use crate::replica::{LocalReplica, Replica, ReplicaError, ReplicaErrorKind, sent_status};
use crate::server::{self, Served, Service};

/// Streams of one gateway at a time. Far more than the memory for requests allows, since the questions by which a gateway finds out
/// whether the worker hears it are streams as well.
const MAX_STREAMS: u32 = 1 << 16;
/// Constraints that are compiled and adapters that are loaded at a time.
const MAX_PREPARING: usize = 2;

/// A model to serve to gateways.
#[derive(Debug)]
pub struct WorkerModel {
    /// What gateways are told of it; the list of artifacts is made from `artifacts`.
    pub description: Description,
    /// What a gateway needs besides: vocabulary and chat templates.
    pub artifacts: Vec<(ArtifactKind, Vec<u8>)>,
    /// What computes it.
    pub engine: EngineHandle,
    /// For constraints; none are taken without a tokenizer.
    pub grammars: Option<ModelGrammars>,
    /// The formats of reasoning and tool calls in its answers.
    pub answer_format: Arc<AnswerFormat>,
    /// What loads adapters over it.
    pub adapters: Option<AdapterSettings>,
}

/// Serves a model to gateways.
#[derive(Debug)]
pub struct Worker {
    config: GatewayConfig,
    state: Arc<WorkerState>,
    phase: watch::Sender<Phase>,
    tls: Option<Arc<Tls>>,
}

/// What the routes share.
#[derive(Debug)]
struct WorkerState {
    description: Description,
    artifacts: Vec<(String, Bytes)>,
    replica: LocalReplica,
    grammars: Option<ModelGrammars>,
    answer_format: Arc<AnswerFormat>,
    adapters: Adapters,
    tokens: ApiKeys,
    preparing: Semaphore,
    memory: Arc<MemoryBudget>,
    phase: watch::Receiver<Phase>,
    body_timeout_s: u64,
}

impl Worker {
    /// Checks the configuration. The keys of its `access` are the tokens that gateways must have one of.
    ///
    /// # Errors
    /// [`GatewayError`], but for [`GatewayError::Io`].
    pub fn new(config: GatewayConfig, model: WorkerModel) -> Result<Self, GatewayError> {
        check_keys(&config.access)?;
        let tls = config.tls.as_ref().map(Tls::load).transpose()?.map(Arc::new);
        let phase = watch::Sender::new(Phase::Serving);
        let WorkerModel { mut description, artifacts, engine, grammars, answer_format, adapters } = model;
        let artifacts: Vec<_> =
            artifacts.into_iter().map(|(kind, bytes)| (kind, Bytes::from(bytes))).collect();
        let artifact = |(kind, bytes): &(ArtifactKind, Bytes)| Artifact {
            kind: *kind,
            digest: throng_wire::digest(bytes),
            n_bytes: bytes.len() as u64,
        };
        description.artifacts = artifacts.iter().map(artifact).collect();
        let digests = description.artifacts.iter().map(|artifact| artifact.digest.clone());
        let state = WorkerState {
            artifacts: digests.zip(artifacts.iter().map(|(_, bytes)| bytes.clone())).collect(),
            description,
            replica: LocalReplica(engine),
            grammars,
            answer_format,
            adapters: Adapters::new(adapters.as_ref()),
            tokens: ApiKeys::new(&config.access.api_keys, None),
            preparing: Semaphore::new(MAX_PREPARING),
            memory: MemoryBudget::new(config.memory_limit_bytes()),
            phase: phase.subscribe(),
            body_timeout_s: config.server.body_timeout_s,
        };
        Ok(Self { config, state: Arc::new(state), phase, tls })
    }

    /// Answers on `listener` until `shutdown` completes; then finishes what runs, for at most `shutdown_timeout_s`, and cuts the
    /// rest.
    ///
    /// # Errors
    /// [`GatewayError::OpenWorker`] where others could use it, and [`GatewayError::Io`].
    pub async fn serve(
        self,
        listener: impl Into<Listener> + Send,
        shutdown: impl Future<Output = impl Into<Shutdown> + Send> + Send,
    ) -> Result<(), GatewayError> {
        let Self { config, state, phase, tls } = self;
        let listener = listener.into();
        let shows_certificates = config.tls.as_ref().is_some_and(|tls| {
            tls.client_ca.is_some() && tls.client_certificates == ClientCertificates::Required
        });
        if !listener.is_local() && config.access.api_keys.is_empty() && !shows_certificates {
            return Err(GatewayError::OpenWorker { address: listener.place() });
        }
        let metrics = HttpMetrics::register(&mut Registry::default());
        let memory = state.memory.clone();
        let served = watch::Sender::new(Served {
            metrics,
            router: routes::router(state),
            tidy: std::convert::identity,
        });
        let served = served.subscribe();
        let observation = Arc::default();
        let service = Service { served, config, phase, memory, tls, max_streams: MAX_STREAMS, observation };
        Ok(server::serve(service, listener, shutdown).await?)
    }
}

impl WorkerState {
    /// Whether no new requests are taken.
    fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::HandedOver
    }

    /// What is said to new requests then.
    fn draining() -> ReplicaError {
        let message = "the worker takes no new requests".to_owned();
        ReplicaError { kind: ReplicaErrorKind::Draining, retryable: true, message }
    }

    /// How it is.
    fn status(&self) -> throng_wire::Status {
        let refuses = if self.is_draining() { Err(Self::draining()) } else { self.replica.check_room() };
        sent_status(self.replica.status(), self.replica.load(), refuses.err())
    }
}
