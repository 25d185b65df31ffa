//! A gateway as `throng serve` and `throng gateway` run it, with a database of keys, limits and the ledger,
//! and an engine that computes nothing: its steps last a given time. Does not know the clients.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::{EngineConfig, EngineHandle};
use throng_gateway::{Gateway, GatewayConfig, Loading, ServedModel};
use throng_store::{LimitKind, Limits, NewKey, open};
use tokio::net::TcpListener;

use throng_cli::commands::serve::{database, fit_connections, process_facts, served_model};
use throng_cli::config::{EngineSection, ModelSection};
use throng_cli::process::output;
use throng_cli::running::{self, RunningModel};

/// Name of the model.
pub const MODEL: &str = "paper";
/// A limit that is counted and never reached.
const NEVER_REACHED: u64 = 1_000_000_000;
/// Number of concurrent sequences: more than the number of streams that can be opened.
const MAX_SEQUENCES: u32 = 1 << 13;
const MAX_BATCH_TOKENS: u32 = 1 << 14;
/// Blocks of the longest sequence, so that none waits for another's blocks.
const BLOCKS_PER_SEQUENCE: u32 = 64;

/// Serves the gateway with the engine in this process until it is ended; prints its port and a key first.
///
/// # Errors
/// When the database, the model's vocabulary or the socket cannot be used.
pub async fn serve(step: Duration) -> Result<()> {
    serve_gateway(step, async |loading: &Loading| {
        let (running, engine) = start(step)?;
        let mut served: ServedModel = served_model(running, &ModelSection::default());
        (served.names, served.engines, served.notice) = (vec![MODEL.to_owned()], vec![engine], None);
        Ok(loading.clone().finish(vec![served])?)
    })
    .await
}

/// Serves a gateway with keys, limits and the ledger; `add_model` adds the model.
///
/// # Errors
/// When the database or the socket cannot be used, and the errors of `add_model`.
pub async fn serve_gateway<T>(
    step: Duration,
    add_model: impl AsyncFnOnce(&Loading) -> Result<T>,
) -> Result<()> {
    let folder = Folder::new()?;
    let url = folder.0.join("keys.sqlite").display().to_string();
    let limits = [LimitKind::RequestsPerMinute, LimitKind::TokensPerMinute, LimitKind::TokensPerDay];
    let new = NewKey {
        organisation: "bench".to_owned(),
        project: "bench".to_owned(),
        limits: Limits::of(limits.map(|kind| (kind, NEVER_REACHED))),
        ..NewKey::default()
    };
    let key = open(&url).await?.create_key(new).await?;
    let mut config = GatewayConfig::default();
    config.access.database = Some(url);
    if !step.is_zero() {
        // Thousands of streams are opened at once: they wait for each other and are not refused.
        config.overload.max_queue_wait_ms = 0;
    }
    fit_connections(&mut config.server);
    let access = config.access.clone();
    let (gateway, loading) = Gateway::loading(config, process_facts("paper".to_owned()))?;
    let _ledger = database::follow(&access, &loading).await?;
    let _added = add_model(&loading).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    output::line(format_args!("{} {}", listener.local_addr()?.port(), key.secret()))?;
    gateway.serve(listener, std::future::pending::<()>()).await?;
    Ok(())
}

/// The starter model's vocabulary, and an engine that takes `step` for each of its steps.
///
/// # Errors
/// When the vocabulary cannot be used.
pub fn start(step: Duration) -> Result<(RunningModel, EngineHandle)> {
    let running = running::start(&ModelSection::default(), &EngineSection::default())?;
    let vocabulary_size = running.engine.capacity().vocabulary_size;
    let scheduler = SchedulerConfig {
        max_batch_tokens: MAX_BATCH_TOKENS,
        max_batch_sequences: MAX_SEQUENCES,
        max_queued_requests: MAX_SEQUENCES,
        // Steps as long as they are do not bound how many prompt tokens join them.
        inter_token_target_ms: 60_000,
        ..SchedulerConfig::default()
    };
    let config = EngineConfig { scheduler, ..EngineConfig::default() };
    let engine = running::start_engine(config, Default::default(), move || {
        Ok(Box::new(PaperEngine { vocabulary_size, step }))
    })?;
    Ok((running, engine))
}

/// A folder that is removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let name = format!("throng-bench-gateway-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Answers each step with the same token for every sequence.
struct PaperEngine {
    vocabulary_size: u32,
    step: Duration,
}

impl Executor for PaperEngine {
    fn capacity(&self) -> ExecutorCapacity {
        ExecutorCapacity {
            n_blocks: MAX_SEQUENCES * BLOCKS_PER_SEQUENCE,
            max_batch_tokens: MAX_BATCH_TOKENS,
            max_batch_sequences: MAX_SEQUENCES,
            max_sequence_tokens: 1 << 12,
            vocabulary_size: self.vocabulary_size,
            n_state_slots: 0,
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        }
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if !self.step.is_zero() {
            std::thread::sleep(self.step);
        }
        output.clear();
        let token = TokenLogprob { token: self.vocabulary_size / 2, logprob: -1.0, rank: 1 };
        for scheduled in batch.sequences() {
            output.begin_sequence();
            if scheduled.sample {
                output.push_sampled(token, &[]);
            }
        }
        Ok(())
    }
}
