//! `throng serve`: answers requests over HTTP until a signal ends it.

pub mod adapters;
pub mod database;
pub(super) mod issuer;
pub(super) mod limits;
pub(super) mod listen;
mod offers;
mod on_demand;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use throng_engine::Peers;
use throng_gateway::{
    Gateway, HeldBytes, LabelActivation, Loading, OnDemandModels, PoolingModel, PoolingOutput, ProcessFacts,
    ServedModel, ServerConfig, Shutdown,
};
use throng_model::LoadedModel;
use throng_model::decoder::weights::LoadProgress;
use throng_model::pooling::{self, ClassifierActivation};
use throng_text::AnswerFormat;
use tokio::sync::oneshot;

use self::adapters::ChangedAdapters;
use self::listen::Listening;
use self::on_demand::MainModel;
use super::plan::page_maker;
use crate::args::{GenerationConfigSource, ServeArgs};
use crate::config::{EngineSection, ModelSection, Settings};
use crate::observability;
use crate::process::core_dumps;
use crate::process::descriptors;
use crate::process::handover;
use crate::process::line_queue::{LineFormat, LineQueue};
use crate::process::logging;
use crate::process::output;
use crate::process::signals::Signals;
use crate::process::systemd;
use crate::running::{self, RunningModel, images};
use crate::text_file;
use crate::vocabulary;

/// Runs the command.
///
/// # Errors
/// When the settings are invalid, the model cannot be loaded or the address is in use.
pub async fn run(arguments: &ServeArgs) -> Result<()> {
    let signals = Signals::listen().context("cannot receive signals")?;
    let mut settings = Settings::of(arguments)?;
    fit_connections(&mut settings.gateway.server);
    core_dumps::forbid();
    let out = LineQueue::start("throng-out", LineFormat::Text, output::unlocked_stdout())
        .context("cannot start a thread")?;
    let served = serve(settings, signals, &out).await;
    out.flush(OUTPUT_LIMIT);
    served
}

/// Maximum time that the process waits at exit until standard output is written.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);
/// Interval of reports to systemd about the progress of loading.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Time that systemd allows for loading after each report.
const LOADING_LIMIT: Duration = Duration::from_secs(600);

/// Listens at once, and refuses requests as not ready until the model is loaded.
async fn serve(settings: Settings, signals: Signals, out: &LineQueue) -> Result<()> {
    let Settings { model, engine, gateway, adapters, on_demand, .. } = settings;
    let comes_on_demand = !on_demand.is_empty() || gateway.on_demand.max_pulled_bytes.is_some();
    let main = MainModel {
        adapters,
        changed_adapters: ChangedAdapters::default(),
        record: gateway.observability.record.clone(),
        shows_tokenizer: gateway.api.tokenizer_info,
        engine: Arc::default(),
    };
    let on_demand = on_demand::models(gateway.on_demand.clone(), on_demand, (&model, &engine), main.clone());
    // An early read, so that an error in the template is reported before the model is loaded.
    running::chosen_chat_template(&model)?;
    let (server, is_encrypted) = (gateway.server.clone(), gateway.tls.is_some());
    let access = gateway.access.clone();
    let observers = observability::observers(&gateway.observability)?;
    let isa = running::isa(&model).map_or_else(|| "none".to_owned(), |isa| isa.name().to_ascii_lowercase());
    let (gateway, loading) = Gateway::loading(gateway, process_facts(isa))?;
    let gateway = gateway.observed_by(observers);
    let ledger = database::follow(&access, &loading).await?;
    let limits = limits::share(&loading)?;
    issuer::follow(&access, &loading);
    let (listener, mut listening) = listen::listen(&server).await?;
    let gateway = listen::listen_for_operator(gateway, &access, &mut listening).await?;
    let gateway = listen::listen_for_ollama(gateway, (&server, &access), &mut listening).await?;
    let address = address(&listening.place, is_encrypted);
    tokio::spawn({
        let loading = loading.clone();
        systemd::feed_watchdog(move || loading.is_live())
    });
    let place = listening.place.clone();
    let serving = gateway.serve(listener, told_to_end(signals.clone(), &mut listening));
    tokio::pin!(serving);
    // Until then, the predecessor process answers.
    let is_successor = handover::is_successor();
    let getting_ready = async {
        tracing::info!("listening on {place} while the model is loaded");
        let others = (on_demand, comes_on_demand);
        let offers = get_ready((model, engine), others, &main, &loading, out).await?;
        out.push(&format!("Serving on {address} ({offers})"));
        systemd::ready(&format!("serving on {address}"));
        handover::ready();
        anyhow::Ok(())
    };
    tokio::select! {
        biased;
        ending = signals.told_to_end() => {
            systemd::stopping("ended before the model was ready");
            tracing::info!("{ending} before the model was ready");
            return Ok(());
        }
        ended = &mut serving, if !is_successor => return ended.map_err(Into::into),
        ready = getting_ready => ready?,
    }
    let served = serving.await;
    limits::finish(limits).await;
    database::finish(ledger).await;
    if let Some(engine) = main.engine.lock().unwrap_or_else(PoisonError::into_inner).take() {
        engine.shutdown();
    }
    served.map_err(Into::into)
}

/// The server's URL for clients.
pub(super) fn address(place: &str, is_encrypted: bool) -> String {
    match (place.starts_with("unix:"), is_encrypted) {
        (true, _) => place.to_owned(),
        (false, true) => format!("https://{place}"),
        (false, false) => format!("http://{place}"),
    }
}

/// Loads the model and its adapters and gives them to the gateway. Returns a description of the served models
/// for users. Loads nothing if all models are loaded on demand.
async fn get_ready(
    (model, engine): (ModelSection, EngineSection),
    (on_demand, comes_on_demand): (Arc<OnDemandModels>, bool),
    main: &MainModel,
    loading: &Loading,
    out: &LineQueue,
) -> Result<&'static str> {
    if model.model.is_none() && comes_on_demand {
        if let Some(adapter) = main.adapters.modules.first() {
            bail!(
                "the adapter {} needs the model that it was trained over: name one (model.model)",
                adapter.name
            );
        }
        tracing::info!("no model is loaded before it is asked for: only those of [[on_demand]] are served");
        loading.finish_with(Vec::new(), Some(on_demand))?;
        return Ok(offers::TEXT);
    }
    let reporting = loading.clone();
    let report = move |done, total| reporting.report(done, total);
    let running = load(model.clone(), engine, None, report).await?;
    running.record(main.record.as_deref())?;
    if let Some(path) = &main.record {
        loading.offer_plan(page_maker(path, &running));
    }
    tracing::info!("{}: {} threads", running.names[0], running::n_threads(&model));
    if let Some(line) = running.describe_quantizing() {
        tracing::info!("{line}");
    }
    tracing::info!("{}", running.describe_kv_cache());
    if let Some(notice) = running.notice {
        out.push(notice);
    }
    *main.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.engine.clone());
    let served = served_main(running, &model, main).await?;
    let (offers, names) = (offers::of(served.pooling.as_ref()), served.names.clone());
    loading.finish_with(vec![served], Some(on_demand.clone()))?;
    on_demand.add_main(names);
    Ok(offers)
}

/// The main model in the form that the gateway serves, with its adapters.
async fn served_main(running: RunningModel, model: &ModelSection, main: &MainModel) -> Result<ServedModel> {
    let tokenizer_config = running.tokenizer.as_deref().filter(|_| main.shows_tokenizer).map(|tokenizer| {
        let chosen = model.chat_template.as_deref().and_then(|path| text_file::read(path).ok());
        vocabulary::tokenizer_config(&running.model, tokenizer, chosen)
    });
    let (section, changed) = (main.adapters.clone(), main.changed_adapters.clone());
    let (running, adapters) = tokio::task::spawn_blocking(move || {
        let adapters = adapters::settings(&running, &section, &changed)?;
        anyhow::Ok((running, adapters))
    })
    .await??;
    let mut served = served_model(running, model);
    (served.tokenizer_config, served.adapters) = (tokenizer_config.map(Into::into), Some(adapters));
    Ok(served)
}

/// Facts about this process for the metrics.
pub fn process_facts(isa: String) -> ProcessFacts {
    let commit =
        option_env!("THRONG_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("unknown").to_owned();
    ProcessFacts { commit, isa, n_log_lines_dropped: logging::n_dropped }
}

/// Loads the model on a thread of its own, so that connections are served meanwhile and a signal can end
/// the wait.
pub(super) async fn load(
    model: ModelSection,
    engine: EngineSection,
    peers: Option<Peers>,
    mut tell_progress: impl FnMut(u64, u64) + Send + 'static,
) -> Result<RunningModel> {
    let (tell, told) = oneshot::channel();
    let mut told_at: Option<Instant> = None;
    let mut report = move |progress: LoadProgress| {
        tell_progress(progress.done_bytes, progress.total_bytes);
        if told_at.is_none_or(|at| at.elapsed() >= STATUS_INTERVAL) {
            told_at = Some(Instant::now());
            let percent = u128::from(progress.done_bytes) * 100 / u128::from(progress.total_bytes.max(1));
            systemd::busy(&format!("loading the model: {percent} %"), LOADING_LIMIT);
        }
    };
    let work = move || {
        let _ = tell.send(running::start_reporting(&model, &engine, peers, &mut report));
    };
    systemd::busy("loading the model", LOADING_LIMIT);
    std::thread::Builder::new().name("throng-load".into()).spawn(work).context("cannot start a thread")?;
    told.await.context("loading the model panicked")?
}

/// Limits the number of connections by the limit of descriptors.
pub fn fit_connections(server: &mut ServerConfig) {
    let limit = descriptors::raise_limit();
    let n_allowed = descriptors::connections_within(limit, server.max_connections);
    if n_allowed < server.max_connections {
        tracing::info!(
            "at most {n_allowed} connections: {} descriptors may be open (ulimit -n)",
            limit.unwrap_or_default()
        );
        server.max_connections = n_allowed;
    }
}

/// A running model in the form that the gateway serves.
pub fn served_model(running: RunningModel, section: &ModelSection) -> ServedModel {
    let recommended = match section.generation_config {
        GenerationConfigSource::Auto => running.model.generation_defaults,
        GenerationConfigSource::Vllm => Default::default(),
    };
    let capacity = running.engine.capacity();
    let answer_format = running.tokenizer.as_deref().map(|tokenizer| {
        let (tool_calls, reasoning) = (&section.tool_call_parser, &section.reasoning_parser);
        let template = running.chat_template.as_deref();
        AnswerFormat::of_model(template, tokenizer, tool_calls.as_deref(), reasoning.as_deref())
    });
    let answer_format = answer_format.unwrap_or_default();
    if answer_format.tool_calls.is_some() || answer_format.reasoning.is_some() {
        tracing::info!(
            "tool calls: {}, reasoning: {}",
            answer_format.tool_calls_name(),
            answer_format.reasoning_name()
        );
    }
    let held = HeldBytes { weights: running.model.weight_summary().n_bytes, kv: running.kv_bytes };
    let pooling = pooling_model(&running.model);
    let images = images::input(&running).map(Arc::new);
    // A vector counts as one token of the engine's sequences.
    let max_model_len = capacity.max_sequence_tokens - u32::from(pooling.is_some());
    ServedModel {
        fingerprint: Some(running.fingerprint(section).into()),
        root: running.names.last().cloned().unwrap_or_default(),
        eos_token_ids: running.eos_token_ids(),
        names: running.names,
        engines: vec![running.engine],
        answer_format: Arc::new(answer_format),
        tokenizer: running.tokenizer,
        tokenizer_config: None,
        chat_template: running.chat_template,
        chat_template_defaults: section.default_chat_template_kwargs.clone(),
        generation_defaults: section.override_generation_config.over(recommended),
        max_model_len,
        vocabulary_size: capacity.vocabulary_size,
        pooling,
        images,
        adapters: None,
        notice: running.notice.map(str::to_owned),
        held,
    }
}

/// The gateway's description of a pooling model.
fn pooling_model(model: &LoadedModel) -> Option<PoolingModel> {
    let pooler = model.pooler.as_ref()?;
    let output = match &pooler.config.output {
        pooling::PoolingOutput::Embedding => PoolingOutput::Embedding,
        pooling::PoolingOutput::Labels { names, activation } => PoolingOutput::Labels {
            names: names.clone(),
            activation: match activation {
                ClassifierActivation::Sigmoid => LabelActivation::Sigmoid,
                ClassifierActivation::Softmax => LabelActivation::Softmax,
                ClassifierActivation::Identity => LabelActivation::Identity,
            },
        },
    };
    Some(PoolingModel {
        output,
        normalizes: pooler.config.normalizes,
        n_segments: model.config.encoder.map_or(0, |encoder| encoder.n_segments as u32),
        segment_stride: model.config.vocabulary_size as u32,
        prompts: pooler.config.prompts.by_name.clone(),
        default_prompt: pooler.config.prompts.default.clone(),
    })
}

/// Completes when the server must end: by a signal, or because a successor process has taken its sockets
/// over.
pub(super) async fn told_to_end(signals: Signals, listening: &mut Listening) -> Shutdown {
    tokio::select! {
        ending = signals.told_to_end() => {
            systemd::stopping("running streams may finish");
            tracing::info!("{ending}: running streams may finish; a second signal ends them at once");
            // Drops the duplicates, so that each socket closes with its listener.
            listening.sockets = Default::default();
            Shutdown::Drain
        }
        pid = handed_over(&signals, listening) => {
            listening.hand_over();
            systemd::followed_by(pid);
            tracing::info!("process {pid} goes on with the sockets: running streams may finish");
            Shutdown::HandOver
        }
    }
}

/// Completes with the process id of a successor that serves. If a successor does not become ready, this
/// process continues.
async fn handed_over(signals: &Signals, listening: &Listening) -> u32 {
    loop {
        signals.told_to_hand_over().await;
        tracing::info!("SIGUSR2: a new process is started");
        match handover::start_successor(&listening.sockets).await {
            Ok(pid) => return pid,
            Err(reason) => tracing::error!(reason, "the new process did not get ready; this one goes on"),
        }
    }
}
