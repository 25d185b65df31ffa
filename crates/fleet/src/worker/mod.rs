//! The worker's side of the fleet protocol: an engine that answers gateways. Takes and returns tokens. Does
//! not know sockets, gateways' credentials, or text except for constraints that it compiles.

mod blocks;
mod generate;
mod generation_stream;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use throng_core::fleet::replica::RunningRanks;
use throng_engine::EngineHandle;
use throng_http::Phase;
use throng_text::AnswerFormat;
use throng_wire::{Artifact, ArtifactKind, Description};
use tokio::sync::{Semaphore, watch as channel};

use crate::adapters::{AdapterSettings, Adapters};
use crate::blocks::BlockPuller;
use crate::constraint::ModelGrammars;
use crate::replica::{LocalReplica, Replica, ReplicaError, ReplicaErrorKind, Status, sent_status};

pub use blocks::BlocksRefused;
pub use generate::read_request;
pub use generation_stream::GenerationStream;

/// Maximum number of constraints being compiled and adapters being loaded at a time.
const MAX_PREPARING: usize = 2;

/// A model to serve to gateways.
#[derive(Debug)]
pub struct WorkerModel {
    /// Description for gateways. Its list of artifacts is computed from `artifacts`.
    pub description: Description,
    /// Additional files for gateways: vocabulary and chat templates.
    pub artifacts: Vec<(ArtifactKind, Vec<u8>)>,
    /// Engine that computes the model.
    pub engine: EngineHandle,
    /// Grammars for constraints; `None` without a tokenizer, so that constraints are refused.
    pub grammars: Option<ModelGrammars>,
    /// Formats of reasoning and tool calls in the model's answers.
    pub answer_format: Arc<AnswerFormat>,
    /// Adapters over the model, and their loader.
    pub adapters: Option<AdapterSettings>,
    /// Asks other workers for blocks; `None` if they are not asked.
    pub puller: Option<Arc<BlockPuller>>,
    /// Ranks of the model, if it is divided over processes.
    pub ranks: Option<RunningRanks>,
}

/// A model that is served to gateways.
#[derive(Debug)]
pub struct WorkerService {
    description: Description,
    artifacts: Vec<(String, Bytes)>,
    replica: LocalReplica,
    grammars: Option<ModelGrammars>,
    answer_format: Arc<AnswerFormat>,
    adapters: Adapters,
    preparing: Semaphore,
    puller: Option<Arc<BlockPuller>>,
    ranks: Option<RunningRanks>,
    /// Permits for giving blocks to other workers.
    serving: Arc<Semaphore>,
    phase: channel::Receiver<Phase>,
}

impl WorkerService {
    /// Creates the service, which serves the model until `phase` announces the shutdown.
    pub fn new(model: WorkerModel, phase: channel::Receiver<Phase>) -> Self {
        let WorkerModel {
            mut description,
            artifacts,
            engine,
            grammars,
            answer_format,
            adapters,
            puller,
            ranks,
        } = model;
        let artifacts: Vec<_> =
            artifacts.into_iter().map(|(kind, bytes)| (kind, Bytes::from(bytes))).collect();
        let artifact = |(kind, bytes): &(ArtifactKind, Bytes)| Artifact {
            kind: *kind,
            digest: throng_wire::digest(bytes),
            n_bytes: bytes.len() as u64,
        };
        description.artifacts = artifacts.iter().map(artifact).collect();
        let digests = description.artifacts.iter().map(|artifact| artifact.digest.clone());
        Self {
            artifacts: digests.zip(artifacts.iter().map(|(_, bytes)| bytes.clone())).collect(),
            description,
            replica: LocalReplica(engine),
            grammars,
            answer_format,
            adapters: Adapters::new(adapters.as_ref()),
            preparing: Semaphore::new(MAX_PREPARING),
            puller,
            ranks,
            serving: Arc::new(Semaphore::new(blocks::MAX_SERVED)),
            phase,
        }
    }

    /// Description of the model for gateways.
    pub fn description(&self) -> Description {
        Description { is_ending: self.is_draining(), ..self.description.clone() }
    }

    /// The artifact with this digest.
    pub fn artifact(&self, digest: &str) -> Option<Bytes> {
        self.artifacts.iter().find(|(known, _)| known == digest).map(|(_, bytes)| bytes.clone())
    }

    /// Whether the worker answers and accepts new requests.
    pub fn is_ready(&self) -> bool {
        self.replica.status() == Status::Ready && !self.is_draining()
    }

    /// Whether new requests are refused because of a shutdown.
    fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::HandedOver
    }

    /// The error for new requests during shutdown.
    fn draining() -> ReplicaError {
        let message = "the worker takes no new requests".to_owned();
        ReplicaError { kind: ReplicaErrorKind::Draining, retryable: true, message }
    }

    /// Health and load of the worker.
    pub fn status(&self) -> throng_wire::Status {
        let refuses = if self.is_draining() { Err(Self::draining()) } else { self.replica.check_room() };
        let status = sent_status(self.replica.status(), self.replica.load(), refuses.err());
        throng_wire::Status { ranks: self.ranks.as_ref().map(RunningRanks::report), ..status }
    }
}
