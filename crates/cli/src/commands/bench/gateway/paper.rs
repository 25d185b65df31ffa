//! The gateway as `throng serve` runs it, with a database of keys, limits and the ledger, over an engine that answers each step at
//! once. Does not know who asks.

use std::path::PathBuf;

use anyhow::{Context, Result};
use throng_core::batch::{ScheduledBatch, StepOutput, TokenLogprob};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig};
use throng_gateway::{Gateway, GatewayConfig};
use throng_store::{LimitKind, Limits, NewKey, open};

use crate::commands::serve::{database, process_facts, served_model};
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running;

/// What the model is called.
pub const MODEL: &str = "paper";
/// Of a limit that is counted and never reached.
const NEVER_REACHED: u64 = 1_000_000_000;

/// Serves until it is ended; says its port and a key first.
///
/// # Errors
/// When the database, the model's vocabulary or the socket cannot be used.
pub async fn serve() -> Result<()> {
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
    let section = ModelSection::default();
    let running = running::start(&section, &EngineSection::default())?;
    let vocabulary_size = running.engine.capacity().vocabulary_size;
    let engine = Engine::start(EngineConfig::default(), move || Ok(Box::new(Instantly { vocabulary_size })))?;
    let mut served = served_model(running, &section);
    (served.names, served.engines, served.notice) = (vec![MODEL.to_owned()], vec![engine], None);
    let (gateway, loading) = Gateway::loading(config.clone(), process_facts("paper".to_owned()))?;
    let _ledger = database::follow(&config.access, &loading).await?;
    loading.finish(vec![served])?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    output::line(format_args!("{} {}", listener.local_addr()?.port(), key.secret()))?;
    gateway.serve(listener, std::future::pending::<()>()).await?;
    Ok(())
}

/// A folder that is removed with what is in it.
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

/// Answers each step at once with the same token.
struct Instantly {
    vocabulary_size: u32,
}

impl Executor for Instantly {
    fn capacity(&self) -> ExecutorCapacity {
        ExecutorCapacity {
            n_blocks: 1 << 16,
            max_batch_tokens: 1 << 14,
            max_batch_sequences: 1 << 10,
            max_sequence_tokens: 1 << 12,
            vocabulary_size: self.vocabulary_size,
            n_state_slots: 0,
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
        }
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
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
