//! Merges defaults, the TOML file, the environment and the flags into one checked [`Settings`]. Does not know
//! the machine and the model.

mod adapters;
mod checks;
mod credentials;
mod document;
pub mod expert;
pub mod fleet;
mod on_demand;
pub mod profiles;
mod renamed;
mod tips;

pub use adapters::AdapterSection;
pub use fleet::WorkerSection;
pub use on_demand::OnDemandSection;

use std::path::PathBuf;

use self::document::Document;
pub use self::document::listed;
use serde::Deserialize;
use throng_core::scheduling::scheduler::{SchedulerConfig, SchedulingPolicy};
use throng_gateway::{
    AccessConfig, ClientCertificates, GatewayConfig, ObservabilityConfig, ReplicaConfig, Secret, TlsConfig,
    TokenConfig,
};
use throng_kernels::Isa;

use crate::args::{
    self, DeviceChoice, ExpertsOn, GenerationConfigSource, GpuLayersChoice, KvDtype, ModelArgs, ModelLength,
    NetworkArgs, ObservabilityArgs, Profile, RankCount, RecommendedSampling, ServeArgs, Variables,
};
use crate::speculation::SpeculationSection;
use crate::text_file;
use crate::usage_error::UsageError;

/// A configuration file: the same settings as the flags, by section. Unknown keys are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConfigFile {
    /// Profile name, which [`profiles::fill`] has read before; here, an unknown one is reported.
    #[serde(rename = "profile")]
    _profile: Option<Profile>,
    model: ModelSection,
    engine: EngineSection,
    gateway: GatewayConfig,
    adapters: AdapterSection,
    worker: WorkerSection,
    replica: Vec<ReplicaConfig>,
    on_demand: Vec<OnDemandSection>,
}

/// The model to load, and its settings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// Folder, file or hub id; `None`: the starter model.
    pub model: Option<String>,
    /// Branch, tag or commit of a hub id.
    pub revision: Option<String>,
    /// Folder for models from the hub.
    pub download_dir: Option<PathBuf>,
    /// Folder or `tokenizer.json` of a tokenizer that replaces the model's own.
    pub tokenizer: Option<PathBuf>,
    /// GGUF file with the encoder of pictures; `None`: the mmproj file beside the model, if there is one.
    pub mmproj: Option<PathBuf>,
    /// Names of the model in requests; they replace its own name.
    pub served_names: Vec<String>,
    /// Maximum number of tokens of a sequence.
    pub max_model_len_tokens: Option<ModelLength>,
    /// Format for quantization at load time.
    pub quantize: Option<args::Quantization>,
    /// Folder where quantized weights are kept for the next start.
    pub quantize_cache: Option<PathBuf>,
    /// Data type of the KV cache.
    pub kv_cache_dtype: KvDtype,
    /// Bytes of the KV cache.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Folder that keeps keys and values that leave the memory.
    pub kv_offload_dir: Option<PathBuf>,
    /// Maximum bytes on disk for each model.
    pub kv_offload_bytes: Option<u64>,
    /// Number of worker threads.
    pub n_threads: Option<usize>,
    /// Processes that share each layer.
    pub tensor_parallel_size: Option<RankCount>,
    /// Stages of layers, each in processes of its own.
    pub pipeline_parallel_size: Option<usize>,
    /// Whether to divide the model although that is expected to be slower than one process.
    pub force: bool,
    /// File of a chat template that replaces the model's own.
    pub chat_template: Option<PathBuf>,
    /// Format of the model's tool calls; `None`: detected from its chat template.
    pub tool_call_parser: Option<String>,
    /// Format of the model's reasoning; `None`: detected from its chat template.
    pub reasoning_parser: Option<String>,
    /// Source of default sampling settings.
    pub generation_config: GenerationConfigSource,
    /// Sampling settings that override those of `generation_config` one by one.
    pub override_generation_config: RecommendedSampling,
    /// Chat template variables for requests that do not set them.
    pub default_chat_template_kwargs: Variables,
    /// Whether to refuse a `config.json` with a key that is not read, or with an unknown `model_type`.
    pub strict_config: bool,
    /// Device on which the model computes.
    pub device: DeviceChoice,
    /// Layers that the device computes; the processor computes those before them.
    pub gpu_layers: GpuLayersChoice,
    /// Where experts are computed.
    pub experts_on: ExpertsOn,
    /// Whether to compute with the reference backend: plain loops, unquantized activations.
    pub reference: bool,
    /// ISA that replaces the machine's best; only a flag sets it.
    #[serde(skip)]
    pub isa: Option<Isa>,
}

/// Settings of the engine's steps and queue.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSection {
    /// Maximum number of new tokens in a step.
    pub max_batch_tokens: Option<u32>,
    /// Maximum number of sequences in a step.
    pub max_batch_sequences: Option<u32>,
    /// Upper bound in milliseconds on the time between two tokens of a stream while long prompts are
    /// computed.
    pub inter_token_target_ms: Option<u32>,
    /// Maximum number of waiting requests.
    pub max_queued_requests: Option<u32>,
    /// Maximum number of prompt tokens of waiting requests.
    pub max_queued_tokens: Option<u64>,
    /// Whether prompts share the computed blocks of a common prefix.
    pub prefix_caching: Option<bool>,
    /// Share of the KV cache, in percent, in which blocks that clients ask to keep stay ahead of others.
    pub marked_cache_percent: Option<u32>,
    /// Scheduling policy.
    pub scheduling_policy: Option<args::SchedulingPolicy>,
    /// Timeout of a step in seconds; a longer step fails.
    pub step_timeout_s: Option<u64>,
    /// Timeout in milliseconds of a request that waits for its first step; 0: none.
    pub queue_timeout_ms: Option<u64>,
    /// Speculative decoding.
    pub speculation: SpeculationSection,
}

/// All settings of `throng serve`.
#[derive(Debug)]
pub struct Settings {
    /// The model to load, and its settings.
    pub model: ModelSection,
    /// Settings of the engine's steps and queue.
    pub engine: EngineSection,
    /// Settings of the gateway.
    pub gateway: GatewayConfig,
    /// Adapters over the model.
    pub adapters: AdapterSection,
    /// Settings that workers and their gateways share.
    pub worker: WorkerSection,
    /// Workers of a gateway from the file.
    pub replicas: Vec<ReplicaConfig>,
    /// Models that are loaded on demand.
    pub on_demand: Vec<OnDemandSection>,
}

impl Settings {
    /// Merges settings. Flags and the environment, which clap has read, override the file; the file
    /// overrides the profile; the profile overrides the defaults.
    ///
    /// # Errors
    /// When the file cannot be read, a flag asks for a feature that Throng lacks, a key is unknown or a
    /// number is out of its range.
    pub fn of(arguments: &ServeArgs) -> Result<Self, UsageError> {
        for notice in arguments.foreign.notices()? {
            tracing::warn!("{notice}");
        }
        let mut document = read_file(arguments)?;
        let file = std::mem::take(&mut document.settings);
        let mut model = file.model;
        model.overlay(&arguments.model);
        if !arguments.served_model_name.is_empty() {
            model.served_names.clone_from(&arguments.served_model_name);
        }
        overlay(&mut model.tool_call_parser, &arguments.tool_call_parser);
        overlay(&mut model.reasoning_parser, &arguments.reasoning_parser);
        model.generation_config = arguments.generation_config.unwrap_or(model.generation_config);
        let recommended = arguments.override_generation_config;
        model.override_generation_config = recommended.unwrap_or(model.override_generation_config);
        if let Some(variables) = &arguments.default_chat_template_kwargs {
            model.default_chat_template_kwargs.clone_from(variables);
        }
        let mut engine = file.engine;
        engine.overlay(arguments);
        let mut gateway = file.gateway;
        overlay_gateway(&mut gateway, arguments);
        overlay_operator_and_tokens(&mut gateway.access, &arguments.network)?;
        let mut adapters = file.adapters;
        adapters.overlay(&arguments.adapters);
        let (worker, replicas, on_demand) = (file.worker, file.replica, file.on_demand);
        let mut settings = Self { model, engine, gateway, adapters, worker, replicas, on_demand };
        credentials::add(&mut settings)?;
        let warnings = std::mem::take(&mut document.warnings);
        let faults = document.with(checks::check(&settings).0);
        let place = arguments.config.as_deref();
        if let Some(told) = document::told(place, &faults) {
            return Err(UsageError(told));
        }
        for warning in warnings.chunks(1).filter_map(|warning| document::told(place, warning)) {
            tracing::warn!("{warning}");
        }
        Ok(settings)
    }
}

impl ModelSection {
    /// The `[model]` section with the values of the flags alone.
    pub fn of(arguments: &ModelArgs) -> Self {
        let mut section = Self::default();
        section.overlay(arguments);
        section
    }

    fn overlay(&mut self, flags: &ModelArgs) {
        overlay(&mut self.model, &flags.model().map(str::to_owned));
        overlay(&mut self.revision, &flags.revision);
        overlay(&mut self.download_dir, &flags.download_dir);
        overlay(&mut self.tokenizer, &flags.tokenizer);
        overlay(&mut self.mmproj, &flags.mmproj);
        overlay(&mut self.max_model_len_tokens, &flags.max_model_len);
        overlay(&mut self.quantize, &flags.quantize);
        overlay(&mut self.quantize_cache, &flags.quantize_cache);
        overlay(&mut self.kv_cache_memory_bytes, &flags.kv_cache_memory);
        overlay(&mut self.kv_offload_dir, &flags.kv_offload_dir);
        overlay(&mut self.kv_offload_bytes, &flags.kv_offload_bytes);
        overlay(&mut self.n_threads, &flags.threads);
        overlay(&mut self.tensor_parallel_size, &flags.tensor_parallel_size);
        overlay(&mut self.pipeline_parallel_size, &flags.pipeline_parallel_size);
        self.force |= flags.force;
        overlay(&mut self.chat_template, &flags.chat_template);
        self.kv_cache_dtype = flags.kv_cache_dtype.unwrap_or(self.kv_cache_dtype);
        self.device = flags.compute.device.unwrap_or(self.device);
        self.experts_on = flags.compute.experts_on.unwrap_or(self.experts_on);
        self.gpu_layers = flags.compute.gpu_layers.unwrap_or(self.gpu_layers);
        self.reference |= flags.reference;
        self.strict_config |= flags.strict_config;
        overlay(&mut self.isa, &flags.isa);
    }
}

impl EngineSection {
    /// The `[engine]` section with the values of the flags alone.
    pub fn of(arguments: &ModelArgs) -> Self {
        Self {
            max_batch_tokens: arguments.max_num_batched_tokens,
            max_batch_sequences: arguments.max_num_seqs,
            speculation: speculation_of(SpeculationSection::default(), arguments),
            ..Self::default()
        }
    }

    fn overlay(&mut self, flags: &ServeArgs) {
        overlay(&mut self.max_batch_tokens, &flags.model.max_num_batched_tokens);
        overlay(&mut self.max_batch_sequences, &flags.model.max_num_seqs);
        overlay(&mut self.inter_token_target_ms, &flags.inter_token_target_ms);
        overlay(&mut self.max_queued_requests, &flags.max_num_queued_reqs);
        overlay(&mut self.max_queued_tokens, &flags.max_num_queued_tokens);
        overlay(&mut self.scheduling_policy, &flags.scheduling_policy);
        overlay(&mut self.step_timeout_s, &flags.step_timeout);
        if flags.no_enable_prefix_caching {
            self.prefix_caching = Some(false);
        }
        self.speculation = speculation_of(std::mem::take(&mut self.speculation), &flags.model);
    }

    /// The scheduler's configuration; absent settings get their defaults.
    pub fn scheduler(&self) -> SchedulerConfig {
        let default = SchedulerConfig::default();
        SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens.unwrap_or(default.max_batch_tokens),
            max_batch_sequences: self.max_batch_sequences.unwrap_or(default.max_batch_sequences),
            inter_token_target_ms: self.inter_token_target_ms.unwrap_or(default.inter_token_target_ms),
            max_queued_requests: self.max_queued_requests.unwrap_or(default.max_queued_requests),
            max_queued_tokens: self.max_queued_tokens.unwrap_or(default.max_queued_tokens),
            max_draft_tokens: self.speculation.num_speculative_tokens.unwrap_or(default.max_draft_tokens),
            speculation: self.speculation.scheduler_method(),
            prompt_lookup_min: self.speculation.prompt_lookup_min.unwrap_or(default.prompt_lookup_min),
            prefix_caching: self.prefix_caching.unwrap_or(default.prefix_caching),
            eviction: default.eviction,
            max_marked_percent: self.marked_cache_percent.unwrap_or(default.max_marked_percent),
            policy: match self.scheduling_policy {
                None => default.policy,
                Some(args::SchedulingPolicy::Fcfs) => SchedulingPolicy::Fcfs,
                Some(args::SchedulingPolicy::Priority) => SchedulingPolicy::Priority,
            },
        }
    }
}

/// The file's section, overridden by the flags.
fn speculation_of(of_file: SpeculationSection, flags: &ModelArgs) -> SpeculationSection {
    if flags.no_speculation {
        return SpeculationSection::off();
    }
    let section = flags.speculative_config.clone().unwrap_or(of_file);
    match &flags.draft_model {
        None => section,
        Some(model) => section.with_draft_model(model),
    }
}

fn overlay<T: Clone>(setting: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        setting.clone_from(flag);
    }
}

fn overlay_gateway(gateway: &mut GatewayConfig, flags: &ServeArgs) {
    let server = &mut gateway.server;
    server.host = flags.host.clone().unwrap_or_else(|| std::mem::take(&mut server.host));
    server.port = flags.port.unwrap_or(server.port);
    server.shutdown_timeout_s = flags.shutdown_timeout.unwrap_or(server.shutdown_timeout_s);
    if let Some(n_bytes) = flags.max_request_memory {
        server.max_request_memory_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
    }
    let access = &mut gateway.access;
    if !flags.api_key.is_empty() {
        access.api_keys = flags.api_key.iter().map(Secret::new).collect();
    }
    access.allow_unauthenticated |= flags.allow_unauthenticated;
    access.most_urgent_priority = flags.most_urgent_priority.unwrap_or(access.most_urgent_priority);
    overlay(&mut gateway.on_demand.max_pulled_bytes, &flags.max_pulled_bytes);
    overlay_network(gateway, &flags.network);
    overlay(&mut gateway.tools.servers_file, &flags.tools.mcp_config);
    overlay(&mut gateway.tools.pins, &flags.tools.tool_pins);
    overlay_observability(&mut gateway.observability, &flags.observability);
    overlay_tls(&mut gateway.tls, &flags.network);
    gateway.api.strict_parameters |= flags.strict_parameters;
    gateway.api.tokenizer_info |= flags.enable_tokenizer_info_endpoint;
    if let Some(max_logprobs) = flags.max_logprobs {
        // -1 means the size of the vocabulary.
        gateway.api.max_logprobs = u32::try_from(max_logprobs).unwrap_or(u32::MAX);
    }
}

fn overlay_network(gateway: &mut GatewayConfig, flags: &NetworkArgs) {
    let access = &mut gateway.access;
    for (setting, words) in [
        (&mut access.allowed_origins, &flags.allowed_origins),
        (&mut access.allowed_methods, &flags.allowed_methods),
        (&mut access.allowed_headers, &flags.allowed_headers),
        (&mut access.allowed_hosts, &flags.allowed_hosts),
        (&mut gateway.api.allowed_media_domains, &flags.allowed_media_domains),
    ] {
        setting.extend(words.iter().flat_map(|words| words.0.iter().cloned()));
    }
    overlay(&mut access.database, &flags.database);
    overlay(&mut access.ledger_journal, &flags.ledger_journal);
    overlay(&mut access.redis, &flags.redis.as_ref().map(Secret::new));
    overlay(&mut access.redis_gateways, &flags.redis_gateways);
    if flags.redis_ca.is_some() {
        access.redis_ca.clone_from(&flags.redis_ca);
    }
    access.allow_credentials |= flags.allow_credentials;
    overlay(&mut gateway.server.uds, &flags.uds);
    overlay(&mut gateway.server.ollama_port, &flags.ollama);
    if let Some(path) = &flags.root_path {
        gateway.server.root_path.clone_from(path);
    }
}

fn overlay_operator_and_tokens(access: &mut AccessConfig, flags: &NetworkArgs) -> Result<(), UsageError> {
    overlay(&mut access.admin_listen, &flags.admin_listen);
    overlay(&mut access.admin_key, &flags.admin_key.as_ref().map(Secret::new));
    if let Some(path) = &flags.admin_key_file {
        access.admin_key = Some(Secret::new(text_file::read(path)?.trim()));
    }
    if let (Some(issuer), Some(audience)) = (&flags.jwt_issuer, &flags.jwt_audience) {
        let of_file = access.tokens.take();
        access.tokens = Some(TokenConfig {
            issuer: issuer.clone(),
            audience: audience.clone(),
            jwks_url: flags.jwt_jwks_url.clone(),
            refresh_s: of_file.as_ref().map_or(TokenConfig::DEFAULT_REFRESH_S, |tokens| tokens.refresh_s),
            claims: of_file.map(|tokens| tokens.claims).unwrap_or_default(),
        });
    }
    Ok(())
}

fn overlay_observability(section: &mut ObservabilityConfig, flags: &ObservabilityArgs) {
    overlay(&mut section.access_log, &flags.access_log);
    section.access_log_bodies |= flags.access_log_bodies;
    overlay(&mut section.otlp_endpoint, &flags.otlp_traces_endpoint);
    overlay(&mut section.record, &flags.record);
    section.max_explained_requests = flags.max_explained_requests.unwrap_or(section.max_explained_requests);
}

fn overlay_tls(tls: &mut Option<TlsConfig>, flags: &NetworkArgs) {
    let (Some(certificate), Some(key)) = (&flags.ssl_certfile, &flags.ssl_keyfile) else { return };
    *tls = Some(TlsConfig {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: flags.ssl_ca_certs.clone(),
        client_certificates: match flags.ssl_cert_reqs {
            Some(1) => ClientCertificates::Optional,
            _ => ClientCertificates::Required,
        },
    });
}

/// Reads the file, if there is one, and adds the values of the profile that the flag or the file names.
fn read_file(arguments: &ServeArgs) -> Result<Document<ConfigFile>, UsageError> {
    let text = arguments.config.as_deref().map(text_file::read).transpose()?.unwrap_or_default();
    Ok(document::read(&text, |root| {
        let mut remarks = expert::unfold(root);
        remarks.extend(renamed::warnings(root));
        profiles::fill(root, arguments.profile);
        remarks
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_section(toml: &str) -> Result<ModelSection, String> {
        toml::from_str::<ConfigFile>(toml).map(|file| file.model).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_override_the_quantization_format_of_the_file() {
        let mut section = model_section("[model]\nquantize = \"q4_k\"").expect("valid");
        assert_eq!(section.quantize, Some(args::Quantization::Q4_K));
        section.overlay(&ModelArgs { quantize: Some(args::Quantization::Q8_0), ..Default::default() });
        assert_eq!(section.quantize, Some(args::Quantization::Q8_0));
        section.overlay(&ModelArgs::default());
        assert_eq!(section.quantize, Some(args::Quantization::Q8_0));
        let error = model_section("[model]\nquantize = \"q5\"").expect_err("not a format");
        assert!(error.contains("unknown variant `q5`, expected one of `q8_0`, `q4_0`, `q4_k`"), "{error}");
    }
}
