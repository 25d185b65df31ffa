//! A running model: weights, KV cache, engine, tokenizer and chat template, built from settings. Does not
//! know where requests come from.

mod block_store;
mod compute;
mod draft_model;
mod fingerprint;
mod found_device;
pub mod images;
pub mod probe;
mod probe_cache;
pub mod ranks;
mod sizes;

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use throng_core::engine::recording::RecordedEngine;
use throng_core::fleet::replica::RunningRanks;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::{Engine, EngineConfig, EngineError, EngineHandle, Peers, Tiers};
use throng_kernels::Isa;
use throng_model::decoder::weights::LoadProgress;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{BackendKind, LoadOptions, LoadedModel, RunnerOptions};
use throng_model::quantization::{CacheUse, Quantization, QuantizeOptions, QuantizeReport};
use throng_os::affinity::default_threads;
use throng_text::{ChatTemplate, Tokenizer};

use crate::args::{self, DeviceChoice};
use crate::config::{EngineSection, ModelSection};
use crate::kv_budget::show;
use crate::recording::Recording;
use crate::source::{HubPlace, ModelSource, STARTER_NOTICE};
use crate::text_file;
use crate::vocabulary;

pub use compute::Compute;
use draft_model::DraftModel;
pub use draft_model::WrapDraft;
use fingerprint::fingerprint;
use ranks::{Division, RankProcesses, Ranks};
use sizes::{Elsewhere, sizes};

/// A running model.
pub struct RunningModel {
    /// Weights, configuration and other metadata.
    pub model: Arc<LoadedModel>,
    /// Names of the model in requests; the first is its id.
    pub names: Vec<String>,
    /// Tokenizer, if the model has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Chat template, if the model has one.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// The engine that serves the model.
    pub engine: EngineHandle,
    /// Notice for users.
    pub notice: Option<&'static str>,
    /// Data type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Bytes of all KV blocks.
    pub kv_bytes: u64,
    /// Device on which the model computes.
    pub compute: Compute,
    /// Settings of the engine, for a recording.
    pub recorded_engine: RecordedEngine,
    /// Start-up times.
    pub start_up: StartUp,
    /// Ranks of the model, if it is divided over processes.
    pub ranks: Option<RunningRanks>,
}

/// Start-up times of a model.
#[derive(Debug, Clone, Copy)]
pub struct StartUp {
    /// Time to find the model and prepare its weights.
    pub load: Duration,
    /// Time until the model could accept requests.
    pub ready: Duration,
}

/// Opens a model without preparing its weights, for inspection.
///
/// # Errors
/// When it cannot be found or is broken.
pub fn open(section: &ModelSection) -> Result<(ModelSource, LoadedModel)> {
    let source = ModelSource::find(&HubPlace {
        model: section.model.as_deref(),
        revision: section.revision.as_deref(),
        folder: section.download_dir.as_deref(),
    })?;
    if section.quantize_cache.is_some() && section.quantize.is_none() {
        bail!("--quantize-cache needs --quantize TYPE");
    }
    let cache = || section.quantize_cache.clone();
    let quantize = section.quantize.map(|to| QuantizeOptions { to: quantization(to), cache: cache() });
    let options = LoadOptions { prepare: None, n_threads: n_threads(section), quantize };
    let model = match &source {
        ModelSource::BuiltIn(built_in) => {
            throng_model::load::load_bytes(built_in.name, built_in.gguf, &options, &mut |_| {})?
        }
        ModelSource::Path { path, .. } => throng_model::load::load(path, &options, &mut |_| {})?,
    };
    let mut model = throng_vision::with_vision(model, section.mmproj.as_deref())?;
    model.log_unread_tensors();
    if section.strict_config {
        strict(&model)?;
    }
    if let Some(path) = &section.tokenizer {
        model.vocabulary = throng_model::load::tokenizer_files(path)?;
    }
    vocabulary::convert_original(&mut model);
    Ok((source, model))
}

/// Refuses a model with unread configuration keys if `--strict-config` is set.
fn strict(model: &LoadedModel) -> Result<()> {
    if !model.has_named_family() {
        bail!("--strict-config: the model_type of {} is that of no known family", model.path.display());
    }
    match model.unread_keys() {
        [] => Ok(()),
        keys => bail!("--strict-config: nothing reads these keys of config.json: {}", keys.join(", ")),
    }
}

/// Checks all that [`start`] checks without preparing weights: tokenizer, chat template, and whether the KV
/// cache fits beside the weights.
///
/// # Errors
/// Errors of [`start`].
pub fn check(section: &ModelSection, engine: &EngineSection, model: &LoadedModel) -> Result<()> {
    tokenizer(section, model)?;
    if chosen_chat_template(section)?.is_none() {
        own_chat_template(model)?;
    }
    let compute = Compute::Host(BackendKind::Cpu);
    let dtype = kv_dtype(section, model);
    let free =
        compute.available_bytes(model, dtype).map(|free| free.saturating_sub(model.weight_summary().n_bytes));
    sizes(section, &engine.scheduler_of(model), (model, Elsewhere::default()), (&compute, free)).map(drop)
}

/// Loads a model and starts an engine on it.
///
/// # Errors
/// When it cannot be found, is broken, or does not fit.
pub fn start(section: &ModelSection, engine: &EngineSection) -> Result<RunningModel> {
    start_reporting(section, engine, None, &mut |_| {})
}

/// Starts a model like [`start`], which exchanges blocks with `peers`, and reports the progress of loading.
///
/// # Errors
/// Errors of [`start`].
pub fn start_reporting(
    section: &ModelSection,
    engine: &EngineSection,
    peers: Option<Peers>,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<RunningModel> {
    start_with(section, engine, (Box::new(|draft_model| draft_model), peers), report)
}

/// Starts a model like [`start_reporting`], with the draft model's executor replaced by `wrap`.
///
/// # Errors
/// Errors of [`start`].
pub fn start_with(
    section: &ModelSection,
    engine: &EngineSection,
    (wrap_draft, peers): (Box<WrapDraft>, Option<Peers>),
    report: &mut dyn FnMut(LoadProgress),
) -> Result<RunningModel> {
    let started = Instant::now();
    // An early read, so that an error is reported before the model is loaded.
    let chosen_template = chosen_chat_template(section)?;
    let (source, model) = open(section)?;
    let compute = Compute::choose(section)?;
    let section = &compute.settled(section);
    let loading = Instant::now();
    let division = Division::of(section, engine, &source)?;
    if division.is_some() && compute.is_device() {
        bail!("a model that is divided over processes computes on processors: take --device cpu");
    }
    let (model, processes) = divided(division.as_ref(), model)?;
    let n_threads = division.as_ref().map_or_else(|| n_threads(section), Division::n_threads);
    let how = (division.as_ref(), n_threads, started);
    let (loaded, tokenizer, own_bytes) = load(section, how, (&model, &compute), report)?;
    let chat_template = match chosen_template {
        None => own_chat_template(&model)?,
        chosen => chosen,
    };
    let draft_model = draft_of(engine, section, (&model, &compute), tokenizer.as_deref())?;
    let scheduler = engine.scheduler_of(&model);
    let mut elsewhere = Elsewhere::default();
    elsewhere.block_bytes += draft_model.as_ref().map_or(0, |draft| draft.block_bytes);
    let running_ranks = division.as_ref().map(Division::running);
    let ranks = division.zip(processes).map(|(division, processes)| {
        let has_head = draft_model.as_ref().is_some_and(DraftModel::is_head);
        let processes = division.ready(processes, (&model, own_bytes), has_head)?;
        elsewhere.add(&processes, kv_dtype(section, &model))?;
        anyhow::Ok(Ranks::new(division, processes, loading.elapsed()))
    });
    let mut ranks = ranks.transpose()?;
    let available_bytes = compute.available_bytes(&model, kv_dtype(section, &model));
    let sizes = sizes(section, &scheduler, (&model, elsewhere), (&compute, available_bytes))?;
    let options = RunnerOptions { backend: compute.host(), n_threads, limits: sizes.limits };
    let names = match section.served_names.as_slice() {
        [] => source.names(&model.name),
        names => names.to_vec(),
    };
    let tiers = block_store::tiers(section, (&model, &compute), &names, peers)?;
    let model = Arc::new(model);
    let (shared, on) = (Arc::clone(&model), compute.clone());
    let mut config = engine_config(engine, scheduler);
    if let Some(ranks) = &ranks {
        config.executor_timeout_ms = u64::try_from(ranks.start_limit().as_millis()).unwrap_or(u64::MAX);
    }
    let handle = start_engine(config.clone(), tiers, move || {
        let draft_model = draft_model.as_ref();
        draft_model::executor((&shared, &on), draft_model, &options, &*wrap_draft, ranks.as_mut())
    })?;
    Ok(RunningModel {
        names,
        notice: matches!(source, ModelSource::BuiltIn(_)).then_some(STARTER_NOTICE),
        tokenizer,
        chat_template: chat_template.map(Arc::new),
        recorded_engine: RecordedEngine::new(&config, handle.capacity()),
        engine: handle,
        kv_dtype: options.limits.kv_dtype,
        kv_bytes: sizes.kv_bytes,
        model,
        compute,
        start_up: StartUp { load: loaded, ready: started.elapsed() },
        ranks: running_ranks,
    })
}

impl RunningModel {
    /// Starts a recording of the engine at `path`, if that is given.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let recording = Recording::start(path, Some(self.recorded_engine.clone()))?;
        self.engine.observe(Arc::new(recording));
        Ok(())
    }

    /// A digest that is equal for processes with bit-identical answers.
    pub fn fingerprint(&self, section: &ModelSection) -> String {
        fingerprint(&self.model, self.kv_dtype, &self.compute.fingerprint(isa(section)))
    }

    /// Tokens that end an answer: those in the model's files, and those with a known spelling in its
    /// vocabulary.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        let spelled = self.tokenizer.iter().flat_map(|t| t.end_of_generation_token_ids());
        let mut ids: Vec<u32> = self.model.eos_token_ids.iter().chain(spelled).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// A log line about quantization; `None` if nothing was quantized.
    pub fn describe_quantizing(&self) -> Option<String> {
        self.model.quantize_report().map(describe_quantizing)
    }

    /// A log line about the capacity of the KV cache.
    pub fn describe_kv_cache(&self) -> String {
        let capacity = self.engine.capacity();
        let n_tokens = u64::from(capacity.n_blocks) * BLOCK_TOKENS as u64;
        let length = u64::from(capacity.max_sequence_tokens).min(2048);
        format!(
            "keys and values: {} ({}) hold {n_tokens} tokens, {} users at {length} tokens each",
            show(self.kv_bytes),
            self.kv_dtype.name(),
            n_tokens / length.max(1),
        )
    }
}

fn describe_quantizing(report: &QuantizeReport) -> String {
    let bytes: u64 = report.formats.iter().map(|(.., bytes)| bytes).sum();
    let formats = report.formats.iter().map(|(format, n, _)| format!("{n} in {}", format.name()));
    let kept = (report.n_kept > 0).then(|| format!("{} kept: no format fits their rows", report.n_kept));
    format!(
        "{} {} in {:.2} s: {} of matrices became {} ({})",
        match report.cache {
            CacheUse::None | CacheUse::Failed => "quantized to",
            CacheUse::Written => "quantized and kept for the next start, to",
            CacheUse::Read => "read from what an earlier start quantized to",
        },
        report.to,
        report.took.as_secs_f64(),
        show(report.stored_bytes),
        show(bytes),
        formats.chain(kept).collect::<Vec<_>>().join(", "),
    )
}

/// Prepares the weights, and the tokenizer in parallel. Returns the time when both were ready, the tokenizer,
/// and the bytes of weights that this process holds.
fn load(
    section: &ModelSection,
    (division, n_threads, started): (Option<&Division>, usize, Instant),
    (model, compute): (&LoadedModel, &Compute),
    report: &mut dyn FnMut(LoadProgress),
) -> Result<(Duration, Option<Arc<Tokenizer>>, u64)> {
    let mut own_bytes = 0;
    // On one thread, a large vocabulary takes about as long as a small model's weights take on all threads.
    let (loaded, tokenizer) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("throng-vocabulary".into());
        let tokenizer =
            thread.spawn_scoped(scope, || tokenizer(section, model)).context("cannot start a thread")?;
        let mut note = |progress: LoadProgress| {
            own_bytes = progress.done_bytes;
            report(progress);
        };
        let mut prepared = || prepare(n_threads, model, compute, &mut note);
        match division {
            None => prepared(),
            Some(division) => division.on_own_cores(prepared),
        }?;
        let loaded = started.elapsed();
        anyhow::Ok((loaded, tokenizer.join().unwrap_or_else(|panic| resume_unwind(panic))?.map(Arc::new)))
    })?;
    Ok((loaded, tokenizer, own_bytes))
}

/// The draft model or the head that the settings name.
fn draft_of(
    engine: &EngineSection,
    section: &ModelSection,
    (model, compute): (&LoadedModel, &Compute),
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<DraftModel>> {
    let Some(name) = &engine.speculation.model else { return Ok(None) };
    let draft = DraftModel::load((name, engine.speculation.asks_head()), section, (model, tokenizer))?;
    if compute.is_device() && draft.is_head() {
        bail!("the EAGLE-3 head {name} runs beside a model on the processor: take --device cpu");
    }
    Ok(Some(draft))
}

/// The part of the model that this process has, and the other processes.
fn divided(division: Option<&Division>, model: LoadedModel) -> Result<(LoadedModel, Option<RankProcesses>)> {
    let Some(division) = division else { return Ok((model, None)) };
    let model = model.part(division.grid().part(0))?;
    Ok((model, Some(division.start()?)))
}

/// Prepares the weights, with a progress bar on the terminal.
fn prepare(
    n_threads: usize,
    model: &LoadedModel,
    compute: &Compute,
    report: &mut dyn FnMut(LoadProgress),
) -> Result<()> {
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("loading {wide_bar} {binary_bytes}/{binary_total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    compute.prepare(n_threads, model, &mut |progress: LoadProgress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        report(progress);
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn tokenizer(section: &ModelSection, model: &LoadedModel) -> Result<Option<Tokenizer>> {
    if section.tokenizer.is_some() {
        vocabulary::chosen_tokenizer(model)
    } else {
        vocabulary::tokenizer(model)
    }
}

/// The chat template that the operator configured.
///
/// # Errors
/// When its file cannot be read or is no template.
pub fn chosen_chat_template(section: &ModelSection) -> Result<Option<ChatTemplate>> {
    let Some(path) = &section.chat_template else { return Ok(None) };
    Ok(Some(ChatTemplate::new(&text_file::read(path)?).with_context(|| path.display().to_string())?))
}

/// The model's own chat templates.
fn own_chat_template(model: &LoadedModel) -> Result<Option<ChatTemplate>> {
    let compiles = |(name, source): &(&String, &String)| match ChatTemplate::new(source) {
        Err(error) if name.as_str() != "default" => {
            tracing::warn!("the chat template named {name:?} is ignored: {error}");
            false
        }
        _ => true,
    };
    let named = model.chat_templates.iter().filter(compiles);
    let named: Vec<_> = named.map(|(name, source)| (name.clone(), source.clone())).collect();
    Ok(if named.is_empty() { None } else { Some(ChatTemplate::from_named(named)?) })
}

/// The backend whose preferences the KV cache follows. A GPU has no tiles of bfloat16.
fn backend(section: &ModelSection) -> BackendKind {
    match section.isa {
        _ if section.reference || section.device != DeviceChoice::Cpu => BackendKind::Reference,
        Some(isa) => BackendKind::CpuIsa(isa),
        None => BackendKind::Cpu,
    }
}

/// The instruction set of the kernels under these settings; `None` with `--reference`.
pub fn isa(section: &ModelSection) -> Option<Isa> {
    if section.reference { None } else { Some(section.isa.unwrap_or_else(Isa::best)) }
}

/// The data type of this model's KV cache under these settings.
pub fn kv_dtype(section: &ModelSection, model: &LoadedModel) -> KvDtype {
    match section.kv_cache_dtype {
        args::KvDtype::Auto => model.default_kv_dtype(backend(section)),
        args::KvDtype::F32 => KvDtype::F32,
        args::KvDtype::F16 => KvDtype::F16,
        args::KvDtype::BF16 => KvDtype::BF16,
        args::KvDtype::Q8_0 => KvDtype::Q8_0,
    }
}

fn quantization(to: args::Quantization) -> Quantization {
    match to {
        args::Quantization::Q8_0 => Quantization::Q8_0,
        args::Quantization::Q4_0 => Quantization::Q4_0,
        args::Quantization::Q4_K => Quantization::Q4_K,
    }
}

/// The number of compute threads.
pub fn n_threads(section: &ModelSection) -> usize {
    section.n_threads.filter(|&n| n > 0).unwrap_or_else(default_threads)
}

fn engine_config(section: &EngineSection, scheduler: SchedulerConfig) -> EngineConfig {
    let default = EngineConfig::default();
    EngineConfig {
        lower_priority: Some(throng_os::priority::lower_priority),
        scheduler,
        step_timeout_ms: section.step_timeout_s.map_or(default.step_timeout_ms, |s| s.saturating_mul(1000)),
        queue_timeout_ms: section.queue_timeout_ms.unwrap_or(default.queue_timeout_ms),
        ..default
    }
}

/// Starts an engine whose threads get the CPU soon after they are woken: they pass tokens on within
/// microseconds, while other threads compute.
///
/// # Errors
/// Errors of [`Engine::start`].
pub fn start_engine(
    config: EngineConfig,
    tiers: Tiers,
    mut make_executor: impl FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send + 'static,
) -> Result<EngineHandle, EngineError> {
    // The engine's threads inherit the setting from this thread. It is set last, as the executor's first
    // computations undo it.
    let make_executor = move || {
        let made = make_executor();
        throng_os::priority::set_latency_slice();
        made
    };
    let starting = std::thread::spawn(move || Engine::start_with_tiers(config, &tiers, make_executor));
    starting.join().unwrap_or_else(|panic| resume_unwind(panic))
}
