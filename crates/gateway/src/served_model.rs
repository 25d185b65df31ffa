//! A model as the gateway sees it: names, engines, and what turns text into tokens. Does not know weights.

use std::sync::{Arc, Mutex, PoisonError};

use throng_core::request::{GenerationDefaults, TokenId};
use throng_engine::EngineHandle;
use throng_fleet::adapters::{AdapterSettings, Adapters, LoadedAdapter};
use throng_text::{AnswerFormat, ChatTemplate, Tokenizer};

use throng_fleet::constraint::ModelGrammars;

use throng_fleet::replica::{LocalReplica, Replica};

use crate::adapter_errors::unloadable;
use crate::config::GatewayConfig;
use crate::overload::{OverloadControl, Scale};
use crate::pooling_model::PoolingModel;
use throng_api::ApiError;
use throng_api::openai::drop_invalid;
use throng_api::spec::{ModelFacts, ModelLimits};
use throng_cache::ModelInstance;
use throng_metering::HeldBytes;
use throng_metering::metrics::ModelMetrics;

/// A model to serve.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Names that it answers to, at least one; the first is its id.
    pub names: Vec<String>,
    /// The path or hub id that was loaded.
    pub root: String,
    /// Engines that compute it in this process, all with the same weights and limits; none if workers do.
    /// When one fails, another goes on with its requests.
    pub engines: Vec<EngineHandle>,
    /// Tells its build and weights from others beyond this process: answers are kept on disk under it. None
    /// for models that workers compute, whose fingerprints they tell.
    pub fingerprint: Option<Arc<str>>,
    /// Text to tokens and back. Without it, prompts and answers are token ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Answer of `/tokenizer_info`: the tokenizer's configuration as JSON.
    pub tokenizer_config: Option<Arc<str>>,
    /// Messages to text. Without it there are no chat completions.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Variables for the chat template where a request does not set them.
    pub chat_template_defaults: serde_json::Map<String, serde_json::Value>,
    /// The formats of reasoning and tool calls in its answers.
    pub answer_format: Arc<AnswerFormat>,
    /// Defaults where a request says nothing.
    pub generation_defaults: GenerationDefaults,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// Most tokens of prompt and answer together, by the model or the operator.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Meaning of its vectors, where it answers with vectors; `None` where it generates text.
    pub pooling: Option<PoolingModel>,
    /// Loader of adapters over it; none can be used without.
    pub adapters: Option<AdapterSettings>,
    /// Notice to people about the model, shown once ("a toy; load a real one with …").
    pub notice: Option<String>,
    /// Bytes that it holds in memory whether anyone asks or not, for the metrics.
    pub held: HeldBytes,
}

impl ServedModel {
    /// Replicas that answer its requests.
    pub(crate) fn replicas(&self) -> Vec<Arc<dyn Replica>> {
        self.engines.iter().map(|engine| Arc::new(LocalReplica(engine.clone())) as _).collect()
    }

    /// The id: the first name.
    pub fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}

/// A served model with what the gateway keeps beside it.
#[derive(Debug)]
pub(crate) struct ModelEntry {
    /// The model.
    pub served: ServedModel,
    /// Counters about it.
    pub metrics: ModelMetrics,
    /// Constraints on the form of its outputs; none without a tokenizer.
    pub grammars: Option<ModelGrammars>,
    /// Its adapters.
    pub adapters: Adapters,
    /// Lets its requests in.
    pub overload: Arc<OverloadControl>,
    /// Number of workers that it should have.
    pub scale: Scale,
    /// Tells its answers from those of other models, with the fingerprint of the worker that joined last.
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

    /// Whether other processes compute it.
    pub fn is_remote(&self) -> bool {
        self.served.engines.is_empty()
    }

    /// Tells its answers from those of other models.
    pub fn instance(&self) -> ModelInstance {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells its answers from those of other models, also in other processes.
    pub fn fingerprint(&self) -> Option<Arc<str>> {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// A worker computes it from now on. If its answers may differ from those of the one before, they are
    /// those of another model.
    pub fn worker_joined(&self, fingerprint: &str) {
        let mut instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        if instance.1.as_deref() != Some(fingerprint) {
            *instance = (ModelInstance::next(), Some(fingerprint.into()));
        }
    }

    /// Whether requests may call it, or one of its adapters, by this name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.served.names.iter().any(|known| known == name) || self.adapters.has(name)
    }

    /// The adapter that requests mean by this name; `None`: the model as it is.
    ///
    /// # Errors
    /// 404 when the name has been taken away meanwhile; 503 and 400 when an adapter cannot be loaded again.
    pub fn adapter_of(&self, name: &str) -> Result<Option<LoadedAdapter>, ApiError> {
        if self.served.names.iter().any(|known| known == name) {
            return Ok(None);
        }
        let leased = self.adapters.lease(name).map_err(|fault| unloadable("model", fault))?;
        leased.map(Some).ok_or_else(|| ApiError::model_not_found(name))
    }

    /// Facts that requests are checked against.
    pub fn facts(&self) -> ModelFacts<'_> {
        let ServedModel { generation_defaults, eos_token_ids, .. } = &self.served;
        ModelFacts { limits: self.limits, defaults: generation_defaults, eos_token_ids }
    }

    /// Whether the chat template reads a variable. Without a template, conversations are refused whatever
    /// they bring.
    pub fn template_reads(&self, variable: &str) -> bool {
        self.served.chat_template.as_ref().is_none_or(|template| template.reads(variable))
    }

    /// Limits that requests are checked against, but for defaults.
    pub fn limits(&self) -> &ModelLimits {
        &self.limits
    }
}
