//! A model in the gateway: names, engines, tokenizer and template. Does not know weights.

use std::sync::{Arc, Mutex, PoisonError};

use throng_core::request::{GenerationDefaults, TokenId};
use throng_engine::EngineHandle;
use throng_fleet::adapters::{AdapterSettings, Adapters, LoadedAdapter};
use throng_text::{AnswerFormat, ChatTemplate, Tokenizer};

use throng_fleet::constraint::ModelGrammars;

use throng_fleet::replica::{LocalReplica, Replica};

use crate::adapter_errors::unloadable;
use crate::config::GatewayConfig;
use crate::image_input::ImageInput;
use crate::overload::{OverloadControl, Scale};
use crate::pooling_model::PoolingModel;
use throng_api::ApiError;
use throng_api::ollama::ModelDescription;
use throng_api::openai::drop_invalid;
use throng_api::spec::{ModelFacts, ModelLimits};
use throng_cache::ModelInstance;
use throng_metering::HeldBytes;
use throng_metering::metrics::ModelMetrics;

/// A model to serve.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Names of the model, at least one; the first is its id.
    pub names: Vec<String>,
    /// Path or hub id that was loaded.
    pub root: String,
    /// Engines of the model in this process, with equal weights and limits; none if workers compute it.
    /// When one fails, another takes over its requests.
    pub engines: Vec<EngineHandle>,
    /// Fingerprint of the build and weights, valid beyond this process, under which answers are kept on
    /// disk. `None` for models of workers, which report theirs.
    pub fingerprint: Option<Arc<str>>,
    /// Tokenizer; without it, prompts and answers are token ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Configuration of the tokenizer as JSON, for `/tokenizer_info`.
    pub tokenizer_config: Option<Arc<str>>,
    /// Chat template; without it there are no chat completions.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Variables of the chat template that a request does not set.
    pub chat_template_defaults: serde_json::Map<String, serde_json::Value>,
    /// Rules by which the model takes images; `None` if it takes only text.
    pub images: Option<Arc<ImageInput>>,
    /// Formats of reasoning and tool calls in answers.
    pub answer_format: Arc<AnswerFormat>,
    /// Sampling defaults for requests.
    pub generation_defaults: GenerationDefaults,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// Maximum number of tokens of prompt and answer together, by the model or the operator.
    pub max_model_len: u32,
    /// Size of the vocabulary; token ids are below it.
    pub vocabulary_size: u32,
    /// Meaning of the vectors, if the model answers with vectors; `None` if it generates text.
    pub pooling: Option<PoolingModel>,
    /// Settings of adapters; `None` if none can be used.
    pub adapters: Option<AdapterSettings>,
    /// Notice to users about the model, shown once ("a toy; load a real one with …").
    pub notice: Option<String>,
    /// Bytes in memory, with or without requests, for the metrics.
    pub held: HeldBytes,
}

impl ServedModel {
    /// Replicas for the engines.
    pub(crate) fn replicas(&self) -> Vec<Arc<dyn Replica>> {
        self.engines.iter().map(|engine| Arc::new(LocalReplica(engine.clone())) as _).collect()
    }

    /// Id of the model, its first name.
    pub fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Description for Ollama's clients.
    pub(crate) fn description(&self) -> ModelDescription {
        let AnswerFormat { tool_calls, reasoning, .. } = &*self.answer_format;
        let further = [
            ("vision", self.images.is_some()),
            ("tools", tool_calls.is_some()),
            ("thinking", reasoning.is_some()),
        ];
        let capabilities = match self.pooling {
            Some(_) => vec!["embedding"],
            None => {
                let further = further.into_iter().filter_map(|(name, is_able)| is_able.then_some(name));
                ["completion"].into_iter().chain(further).collect()
            }
        };
        ModelDescription::new(capabilities, self.max_model_len)
    }
}

/// A served model with the gateway's state for it.
#[derive(Debug)]
pub(crate) struct ModelEntry {
    /// The model as it was added.
    pub served: ServedModel,
    /// Counters of the model.
    pub metrics: ModelMetrics,
    /// Grammars for constraints on outputs; `None` without a tokenizer.
    pub grammars: Option<ModelGrammars>,
    /// Adapters of the model.
    pub adapters: Adapters,
    /// Overload control of the model's requests.
    pub overload: Arc<OverloadControl>,
    /// Decisions about the number of workers.
    pub scale: Scale,
    /// Instance of the model for the cache, with the fingerprint of the worker that joined last.
    instance: Mutex<(ModelInstance, Option<Arc<str>>)>,
    limits: ModelLimits,
}

impl ModelEntry {
    /// Prepares a model for serving.
    pub fn new(mut served: ServedModel, metrics: ModelMetrics, config: &GatewayConfig) -> Self {
        for (parameter, value) in drop_invalid(&mut served.generation_defaults) {
            tracing::warn!(
                parameter,
                value,
                "the model recommends a value that no request may have: ignored"
            );
        }
        if let Some(template) = &served.chat_template {
            for variable in served.chat_template_defaults.keys().filter(|name| !template.reads(name)) {
                tracing::warn!(
                    variable,
                    "the chat template does not read this default of the operator: ignored"
                );
            }
        }
        let limits = ModelLimits {
            vocabulary_size: served.vocabulary_size,
            max_model_len: served.max_model_len,
            max_logprobs: Some(config.api.max_logprobs),
        };
        let grammars = served
            .tokenizer
            .as_ref()
            .map(|tokenizer| ModelGrammars::new(tokenizer.clone(), served.eos_token_ids.clone()));
        let adapters = Adapters::new(served.adapters.take().as_ref());
        let fingerprint = served.fingerprint.clone();
        Self {
            served,
            metrics,
            grammars,
            adapters,
            overload: Arc::new(OverloadControl::new(&config.overload)),
            scale: Scale::new(&config.autoscale),
            instance: Mutex::new((ModelInstance::next(), fingerprint)),
            limits,
        }
    }

    /// Whether other processes compute the model.
    pub fn is_remote(&self) -> bool {
        self.served.engines.is_empty()
    }

    /// Instance of the model, by which its cached answers are kept apart from those of other models.
    pub fn instance(&self) -> ModelInstance {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Fingerprint by which its answers are kept apart from those of other models, also in other processes.
    pub fn fingerprint(&self) -> Option<Arc<str>> {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Notes that a worker has joined. If its fingerprint differs from the last one's, the model becomes a
    /// new instance.
    pub fn worker_joined(&self, fingerprint: &str) {
        let mut instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        if instance.1.as_deref() != Some(fingerprint) {
            *instance = (ModelInstance::next(), Some(fingerprint.into()));
        }
    }

    /// Whether the model, or one of its adapters, has this name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.served.names.iter().any(|known| known == name) || self.adapters.has(name)
    }

    /// The adapter with this name; `None` for the model itself.
    ///
    /// # Errors
    /// 404 when the name has been removed meanwhile; 503 and 400 when an adapter cannot be loaded again.
    pub fn adapter_of(&self, name: &str) -> Result<Option<LoadedAdapter>, ApiError> {
        if self.served.names.iter().any(|known| known == name) {
            return Ok(None);
        }
        let leased = self.adapters.lease(name).map_err(|fault| unloadable("model", fault))?;
        leased.map(Some).ok_or_else(|| ApiError::model_not_found(name))
    }

    /// Facts of the model for checking requests.
    pub fn facts(&self) -> ModelFacts<'_> {
        let ServedModel { generation_defaults, eos_token_ids, .. } = &self.served;
        ModelFacts { limits: self.limits, defaults: generation_defaults, eos_token_ids }
    }

    /// Whether the chat template reads a variable. Without a template it is true, since conversations are
    /// refused anyway.
    pub fn template_reads(&self, variable: &str) -> bool {
        self.served.chat_template.as_ref().is_none_or(|template| template.reads(variable))
    }

    /// Limits of the model for checking requests.
    pub fn limits(&self) -> &ModelLimits {
        &self.limits
    }
}
