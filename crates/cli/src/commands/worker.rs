//! `throng worker`: an engine for gateways, until a signal ends it. Does not know clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_core::fleet::routing::Role;
use throng_engine::Peers;
use throng_fleet::constraint::ModelGrammars;
use throng_gateway::{
    AdapterSettings, BlockPuller, PeerSettings, Secret, ServedModel, TlsConfig, Worker, WorkerModel,
};
use throng_model::VocabularySource;
use throng_text::ChatTemplate;
use throng_wire::{ArtifactKind, Description, Versions, Vocabulary};
use tokio::runtime::Handle;

use super::serve::{adapters, listen, load, served_model, told_to_end};
use crate::args::{ExchangeBlocks, WorkerArgs};
use crate::config::{ModelSection, Settings};
use crate::process::core_dumps;
use crate::process::handover;
use crate::process::line_queue::{LineFormat, LineQueue};
use crate::process::output;
use crate::process::signals::Signals;
use crate::process::systemd;
use crate::running::{RunningModel, images};
use crate::text_file;
use crate::vocabulary;

/// Maximum time that the process waits at exit until standard output is written.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// When the settings are invalid, the model cannot be loaded, or the worker's port would be open to anyone.
pub async fn run(arguments: &WorkerArgs) -> Result<()> {
    let signals = Signals::listen().context("cannot receive signals")?;
    core_dumps::forbid();
    let Settings { model, engine, mut gateway, adapters: section, worker, .. } =
        Settings::of(&arguments.as_serve())?;
    let region = arguments.region.clone().or(worker.region);
    // Keys and databases are for clients, which never connect to a worker.
    let token = arguments.worker_token.as_ref().map(Secret::new).or(worker.token);
    let exchange = arguments.exchange_blocks.unwrap_or(worker.exchange_blocks);
    let role = arguments.role.unwrap_or(worker.role).into();
    let peer_ca = arguments.peer_ca.clone().or(worker.peer_ca);
    let puller = puller(exchange, token.as_ref(), peer_ca, gateway.tls.as_ref())?;
    let at_any_cost = exchange == ExchangeBlocks::On;
    let peers = puller.clone().map(|puller| Peers { puller, at_any_cost });
    gateway.access =
        throng_gateway::AccessConfig { api_keys: token.into_iter().collect(), ..Default::default() };
    let (listener, mut listening) = listen::listen(&gateway.server).await?;
    let record = gateway.observability.record.clone();
    let loading = load(model.clone(), engine, peers, |_, _| {});
    let running = tokio::select! {
        biased;
        ending = signals.told_to_end() => {
            tracing::info!("{ending} before the model was ready");
            return Ok(());
        }
        loaded = loading => loaded?,
    };
    running.record(record.as_deref())?;
    let (running, adapters) = tokio::task::spawn_blocking(move || {
        let adapters = adapters::settings(&running, &section, &adapters::ChangedAdapters::default())?;
        anyhow::Ok((running, adapters))
    })
    .await??;
    tracing::info!("{}", running.describe_kv_cache());
    let handle = running.engine.clone();
    let mut model = worker_model(running, &model, adapters)?;
    model.description.region = region;
    model.description.role = role;
    model.puller = puller;
    let worker = Worker::new(gateway, model)?;
    let out = LineQueue::start("throng-out", LineFormat::Text, output::unlocked_stdout())
        .context("cannot start a thread")?;
    out.push(&format!(
        "Working for gateways on {} (throng gateway --replica URL)",
        url(&listening.place, arguments)
    ));
    tokio::spawn({
        let handle = handle.clone();
        systemd::feed_watchdog(move || !handle.is_lost())
    });
    systemd::ready("working for gateways");
    handover::ready();
    let served = worker.serve(listener, told_to_end(signals, &mut listening)).await;
    handle.shutdown();
    out.flush(OUTPUT_LIMIT);
    served.map_err(Into::into)
}

/// Asks other workers for blocks, with the token of the gateways. A worker with TLS asks others with TLS
/// only, and shows them its own certificate.
fn puller(
    exchange: ExchangeBlocks,
    token: Option<&Secret>,
    ca: Option<PathBuf>,
    tls: Option<&TlsConfig>,
) -> Result<Option<Arc<BlockPuller>>> {
    if exchange == ExchangeBlocks::Off {
        return Ok(None);
    }
    let settings = PeerSettings {
        token: token.cloned(),
        ca: ca.or_else(|| tls?.client_ca.clone()),
        certificate: tls.map(|tls| (tls.certificate.clone(), tls.key.clone())),
        encrypted_only: tls.is_some(),
    };
    let puller = BlockPuller::new(&settings, Handle::current());
    Ok(Some(Arc::new(puller.map_err(anyhow::Error::msg).context("cannot ask other workers for blocks")?)))
}

fn url(place: &str, arguments: &WorkerArgs) -> String {
    let scheme = if arguments.ssl_certfile.is_some() { "throngs" } else { "throng" };
    format!("{scheme}://{place}")
}

/// A running model with the description that a worker sends to its gateways.
///
/// # Errors
/// When the description cannot be read from the model's files.
pub fn worker_model(
    running: RunningModel,
    section: &ModelSection,
    adapters: AdapterSettings,
) -> Result<WorkerModel> {
    let fingerprint = running.fingerprint(section);
    let context_tokens = running.model.config.max_sequence_tokens as u64;
    let artifacts = artifacts(&running, section)?;
    let (engine, ranks) = (running.engine.clone(), running.ranks.clone());
    let takes_media = engine.capacity().takes_media;
    let served = served_model(running, section);
    let ServedModel { names, tokenizer, answer_format, eos_token_ids, max_model_len, .. } = served;
    Ok(WorkerModel {
        grammars: tokenizer.map(|tokenizer| ModelGrammars::new(tokenizer, eos_token_ids.clone())),
        description: Description {
            versions: Versions::OWN,
            names,
            fingerprint,
            max_model_len,
            context_tokens,
            vocabulary_size: served.vocabulary_size,
            eos_token_ids,
            defaults: served.generation_defaults,
            chat_template_defaults: served.chat_template_defaults,
            tool_call_parser: section.tool_call_parser.clone(),
            reasoning_parser: section.reasoning_parser.clone(),
            adapters: adapters.modules.iter().map(|module| module.name.clone()).collect(),
            pooling: served.pooling.map(Into::into),
            takes_media,
            region: None,
            role: Role::default(),
            is_ending: false,
            notice: served.notice,
            artifacts: Vec::new(),
        },
        artifacts,
        engine,
        answer_format,
        adapters: Some(adapters),
        puller: None,
        ranks,
    })
}

/// Files of the model that a gateway needs.
fn artifacts(running: &RunningModel, section: &ModelSection) -> Result<Vec<(ArtifactKind, Vec<u8>)>> {
    let mut artifacts = Vec::new();
    match &running.model.vocabulary {
        VocabularySource::None | VocabularySource::Original { .. } => {}
        VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config } => {
            artifacts.push((ArtifactKind::TokenizerJson, tokenizer_json.clone()));
            artifacts.extend(tokenizer_config.clone().map(|config| (ArtifactKind::TokenizerConfig, config)));
        }
        VocabularySource::Gguf(gguf) => {
            let vocabulary = Vocabulary::from(vocabulary::gguf_vocabulary(gguf)?);
            artifacts.push((ArtifactKind::GgufVocabulary, serde_json::to_vec(&vocabulary)?));
        }
    }
    let templates = match &section.chat_template {
        Some(path) => vec![("default".to_owned(), text_file::read(path)?)],
        // Templates that do not compile were logged when the model was loaded.
        None => {
            let named = running.model.chat_templates.iter();
            let compiling = named.filter(|(_, source)| ChatTemplate::new(source).is_ok());
            compiling.map(|(name, source)| (name.clone(), source.clone())).collect()
        }
    };
    if !templates.is_empty() {
        artifacts.push((ArtifactKind::ChatTemplates, serde_json::to_vec(&templates)?));
    }
    if let Some(files) = images::files(running)? {
        artifacts.push((ArtifactKind::ImageProcessor, serde_json::to_vec(&files)?));
    }
    Ok(artifacts)
}
