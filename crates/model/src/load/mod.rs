//! Opens a model: a folder as the hub has them or a GGUF file, with the files beside the weights. Does not
//! interpret tokenizers and templates; they are passed on as they are.

mod adapters;
mod chat_templates;
mod eagle;
mod folder;
mod gguf_file;
mod gguf_pooler;
mod json_file;
mod media_model;
mod part;
mod pooler;
mod prepare;
mod purpose;
mod split;
mod summary;
mod unnamed;
mod unread;
mod vocabulary;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use throng_core::request::GenerationDefaults;
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::forward_work::ForwardWork;
use throng_kernels::Isa;
use throng_kernels::quant::Format;

use crate::arch::{Architecture, ConfigError, TensorNames};
use crate::backend::{Backend, BackendError};
use crate::config::{DecoderConfig, ShardBlocks, Stage};
use crate::decoder::weights::{DecoderWeights, LoadProgress, TensorError};
use crate::kv_cache::{KvDtype, KvLayout};
use crate::parallel::{OwnPart, PartError, shard_blocks};
use crate::pooling::{Pooler, PoolingRunner};
use crate::quantization::{CachePlace, QuantizeError, QuantizeOptions, QuantizePlan, QuantizeReport};
use crate::roofline::{HeldTensor, forward_work};
use crate::runner::{ModelRunner, RunnerLimits};
use crate::state_cache::StateLayout;
use crate::tensor_role::{TensorRole, tensor_roles};
use throng_checkpoint::gguf::{Gguf, GgufError};
use throng_checkpoint::safetensors::SafetensorsError;
use throng_checkpoint::{FileChanged, TensorSource, TensorView};

pub use eagle::{EagleHead, ModelAndHead, is_eagle_head};
pub use folder::configuration;
pub use media_model::MediaModel;
use prepare::{PreparedWeights, UnpreparedWeights};
pub use summary::WeightSummary;
pub use vocabulary::{VocabularySource, tokenizer_files};

/// Backend on which the model computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The fast kernels of this machine; activations are quantized where the weights are.
    #[default]
    Cpu,
    /// The kernels of the CPU backend with one of the machine's instruction sets, for comparisons.
    /// Preparing panics when the machine does not have it.
    CpuIsa(Isa),
    /// Plain float loops, for tests.
    Reference,
}

impl BackendKind {
    /// The instruction set of the kernels, if it uses any.
    pub(crate) fn isa(self) -> Option<Isa> {
        match self {
            Self::Cpu => Some(Isa::best()),
            Self::CpuIsa(isa) => Some(isa),
            Self::Reference => None,
        }
    }
}

/// Options for opening a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Backend for which the weights are prepared at once; `None` leaves that to the first runner, so that a
    /// model of which only the metadata are wanted opens quickly.
    pub prepare: Option<BackendKind>,
    /// Number of threads that prepare weights.
    pub n_threads: usize,
    /// Quantize the weights when they are prepared.
    pub quantize: Option<QuantizeOptions>,
}

/// Options for making a runner.
#[derive(Debug, Clone, Copy)]
pub struct RunnerOptions {
    /// Backend on which the model computes.
    pub backend: BackendKind,
    /// Number of threads that compute.
    pub n_threads: usize,
    /// Bounds of the runner.
    pub limits: RunnerLimits,
}

/// An open model: its configuration, its mapped weights, and the contents of the files beside them.
pub struct LoadedModel {
    /// The folder or file of the model.
    pub path: PathBuf,
    /// The name it is served under: the folder's name or the file's stem.
    pub name: String,
    /// Architecture of the model.
    pub config: Arc<DecoderConfig>,
    /// Source of its vocabulary.
    pub vocabulary: VocabularySource,
    /// The Jinja sources of the chat templates, by name.
    pub chat_templates: ChatTemplates,
    /// The sampling parameters that the model's authors recommend.
    pub generation_defaults: GenerationDefaults,
    /// Tokens that the files name as the end of an answer, sorted; a vocabulary may spell more of them.
    pub eos_token_ids: Vec<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Pooling of the outputs where it answers with vectors; `None` where it generates text.
    pub pooler: Option<Pooler>,
    /// The part that encodes pictures; `None`: the model reads text only.
    media: Option<Arc<dyn MediaModel>>,
    /// Fingerprint of the model, if blocks of its runners may be exported.
    fingerprint: OnceLock<Arc<str>>,
    architecture: Architecture,
    /// The part of the model that is loaded; `None`: the whole model.
    own_part: Option<OwnPart>,
    tensors: Arc<dyn TensorSource>,
    unread_tensors: Vec<String>,
    quantize: Option<QuantizePlan>,
    cache: Option<CachePlace>,
    prepared: PreparedWeights,
}

/// Sources of chat templates by name; the usual one is called `default`.
pub type ChatTemplates = BTreeMap<String, String>;

/// Reason why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path is neither a model folder nor a GGUF file.
    #[error("{}: {reason}", path.display())]
    NotAModel {
        /// Path as the caller gave it.
        path: PathBuf,
        /// Name of the missing part.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A file beside the weights is broken.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Reason of the refusal.
        reason: String,
    },
    /// The GGUF file is broken.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The safetensors files are broken.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A weight file was truncated or written to while it was loaded.
    #[error(transparent)]
    Changed(#[from] FileChanged),
    /// The architecture is unknown or is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tensors are missing or have wrong shapes.
    #[error(transparent)]
    Tensors(#[from] TensorError),
    /// The model cannot be quantized.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// The model cannot be divided into this part.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The backend cannot hold the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Opens the model at `path`: a folder with `config.json` and safetensors files, or a GGUF file (of a split
/// model any part), and prepares its weights as `options` require.
///
/// # Errors
/// When files are missing, broken or of a family that is not supported.
pub fn load(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadedModel, LoadError> {
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let model = match (path.is_dir(), is_gguf) {
        (true, _) => folder::open(path)?,
        (false, true) => gguf_file::open(path)?,
        (false, false) => {
            let reason =
                if path.exists() { "is neither a folder nor a .gguf file" } else { "does not exist" };
            return Err(LoadError::NotAModel { path: path.to_owned(), reason: reason.to_owned() });
        }
    };
    model.prepared_for(options, progress)
}

/// Opens the GGUF file in `bytes` (a model that is compiled into the program) under the name `name`.
///
/// # Errors
/// When it is broken or of a family that is not supported.
pub fn load_bytes(
    name: &str,
    bytes: &[u8],
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadedModel, LoadError> {
    gguf_file::of(Gguf::parse(bytes)?, Path::new(name))?.prepared_for(options, progress)
}

impl LoadedModel {
    fn prepared_for(
        mut self,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        self.check_tensors()?;
        let plan =
            |quantize: &QuantizeOptions| QuantizePlan::new(quantize.to, &self.architecture, &*self.tensors);
        self.quantize = options.quantize.as_ref().map(plan).transpose()?;
        self.cache = options.quantize.as_ref().and_then(|quantize| {
            let (folder, to) = (quantize.cache.as_deref()?, quantize.to);
            CachePlace::new(folder, &self.path, &self.name, to, &self.architecture, &*self.tensors)
        });
        if let Some(backend) = options.prepare {
            self.prepare(backend, options.n_threads, progress)?;
        }
        Ok(self)
    }

    fn unprepared(&self) -> UnpreparedWeights<'_> {
        UnpreparedWeights {
            architecture: &self.architecture,
            part: self.own_part.as_ref(),
            tensors: &*self.tensors,
            quantize: self.quantize,
            cache: self.cache.as_ref(),
        }
    }

    /// Prepares the weights for a backend on `n_threads` threads, unless that has been done.
    ///
    /// # Errors
    /// When tensors are missing or of wrong shapes, or the memory of the backend does not suffice.
    pub fn prepare(
        &self,
        backend: BackendKind,
        n_threads: usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), LoadError> {
        self.prepared.prepare(backend, n_threads, &self.unprepared(), progress)
    }

    /// An executor with its own KV cache. Weights are shared between runners, so that another after a failure
    /// costs no more than its cache.
    ///
    /// # Errors
    /// When memory does not suffice, or the backend does not support the model or such a cache.
    pub fn runner(&self, options: &RunnerOptions) -> Result<Box<dyn Executor>, LoadError> {
        self.runner_on(&options.threads(), options)
    }

    /// The weights on any backend, also of another crate, for any number of [`ModelRunner`]s.
    ///
    /// # Errors
    /// When tensors are missing or of wrong shapes, or the backend cannot hold them.
    pub fn weights_on<B: Backend>(
        &self,
        backend: &B,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<B>>, LoadError> {
        Ok(Arc::new(self.unprepared().load(backend, progress)?.0))
    }

    /// The weights of a stage on a backend, for any number of [`Decoder`](crate::decoder::Decoder)s.
    ///
    /// # Errors
    /// Errors of [`Self::weights_on`], and when the model has no such stage.
    pub fn stage_on<B: Backend>(
        &self,
        backend: &B,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<B>>, LoadError> {
        Ok(Arc::new(self.unprepared().load_stage(backend, stage, progress)?.0))
    }

    /// An executor on any backend, also of another crate, with weights and a KV cache of its own.
    ///
    /// # Errors
    /// Errors of [`Self::weights_on`], and when the backend cannot hold such a cache.
    pub fn runner_with<B: Backend>(
        &self,
        backend: B,
        limits: &RunnerLimits,
    ) -> Result<ModelRunner<B>, LoadError> {
        let weights = self.weights_on(&backend, &mut |_| {})?;
        Ok(ModelRunner::new(backend, Arc::clone(&self.config), weights, limits)?)
    }

    /// Like [`Self::runner_with`], of a pooling model.
    ///
    /// # Errors
    /// The same errors, and when tensors of the head are missing or of wrong shapes.
    ///
    /// # Panics
    /// When the model generates text.
    pub fn pooling_runner_with<B: Backend>(
        &self,
        backend: B,
        limits: &RunnerLimits,
    ) -> Result<PoolingRunner<B>, LoadError> {
        let weights = self.weights_on(&backend, &mut |_| {})?;
        let pooler = self.pooler.as_ref().expect("a pooling model");
        let config = Arc::clone(&self.config);
        Ok(PoolingRunner::new(backend, config, weights, limits, pooler, &self.tensors)?)
    }

    /// Sets the digest of all inputs on which the bits of its answers depend, so that blocks of runners made
    /// from now on may be exported. Ignored if it is set.
    pub fn set_fingerprint(&self, fingerprint: Arc<str>) {
        self.fingerprint.get_or_init(|| fingerprint);
    }

    /// Adds the part that encodes pictures.
    #[must_use]
    pub fn with_media(mut self, media: Arc<dyn MediaModel>) -> Self {
        self.unread_tensors.retain(|name| !media.reads(name));
        self.media = Some(media);
        self
    }

    /// The part that encodes pictures; `None`: the model reads text only.
    pub fn media(&self) -> Option<&Arc<dyn MediaModel>> {
        self.media.as_ref()
    }

    /// The `config.json` of a folder; `None` of a GGUF file.
    ///
    /// # Errors
    /// When it can no longer be read.
    pub fn config_json(&self) -> Result<Option<Map<String, Value>>, LoadError> {
        if !self.path.is_dir() || matches!(self.vocabulary, VocabularySource::Gguf(_)) {
            return Ok(None);
        }
        Ok(Some(json_file::read_object(&self.path, "config.json")?))
    }

    /// The source of the weights as stored.
    pub fn tensor_source(&self) -> Arc<dyn TensorSource> {
        Arc::clone(&self.tensors)
    }

    /// Weights as the file stores them.
    pub fn tensors(&self) -> &dyn TensorSource {
        &*self.tensors
    }

    /// Role of each tensor in the forward pass, by the tensor's name; a name that is absent is not used.
    pub fn tensor_roles(&self) -> HashMap<String, TensorRole> {
        tensor_roles(&self.architecture, &*self.tensors)
    }

    /// A lower bound of the work of the forward pass.
    pub fn forward_work(&self, kv_dtype: KvDtype) -> ForwardWork {
        let uses = self.tensor_roles();
        let tensors = uses.iter().filter_map(|(name, &role)| {
            let Some(tensor) = self.tensors.tensor(name) else {
                let weight = self.tensors.encoded_weight(name)?;
                let format = self.held_encoded(weight.held);
                let n_elements = weight.n_elements as usize;
                return Some(HeldTensor { role, format, n_elements, n_bytes: weight.n_bytes_in(format) });
            };
            Some(HeldTensor {
                role,
                format: self.held_format(&tensor),
                n_elements: tensor.shape.iter().product(),
                n_bytes: self.held_bytes(&tensor),
            })
        });
        forward_work(&self.config, tensors, kv_dtype)
    }

    /// The format in which a tensor is held: its own, or the target of the quantization.
    pub fn held_format(&self, tensor: &TensorView<'_>) -> Format {
        self.quantize.map_or(tensor.format, |plan| plan.format_of(tensor))
    }

    /// The format in which a decoded weight is held, given the format `held` of its numbers.
    pub fn held_encoded(&self, held: Format) -> Format {
        self.quantize.filter(|_| held.is_float()).map_or(held, |plan| plan.to.format())
    }

    /// Bytes of the tensor in that format.
    pub fn held_bytes(&self, tensor: &TensorView<'_>) -> u64 {
        let n_elements = tensor.shape.iter().product();
        self.held_format(tensor).bytes_of(n_elements).unwrap_or(tensor.data.len()) as u64
    }

    /// Report of quantization, once the weights have been prepared; `None` for a model that is held as it is
    /// stored.
    pub fn quantize_report(&self) -> Option<&QuantizeReport> {
        self.prepared.quantize_report()
    }

    /// The KV dtype whose rounding is no coarser than that of the weights and activations: f32 for f32
    /// weights, bf16 for bf16, mxfp8 and quantized weights where the backend multiplies those in AMX tiles of
    /// bfloat16, f16 otherwise.
    pub fn default_kv_dtype(&self, backend: BackendKind) -> KvDtype {
        let has_tiles = backend.isa().is_some_and(Isa::has_tiles);
        let fits = self.config.cache_shapes().all(|shape| KvDtype::BF16.bytes_of(shape.head_dim).is_some());
        match self.weight_summary().formats.first() {
            Some((Format::F32, _)) => KvDtype::F32,
            Some((Format::F16 | Format::FP8, _)) => KvDtype::F16,
            Some(_) if has_tiles && fits => KvDtype::BF16,
            _ => KvDtype::F16,
        }
    }

    /// The shape of a KV cache of `n_blocks`.
    pub fn kv_layout(&self, dtype: KvDtype, n_blocks: usize) -> KvLayout {
        KvLayout::new(&self.config, dtype, n_blocks).of_layers(&self.stage().layers)
    }

    /// Bytes of one slot of recurrent state; `None` when it overflows.
    pub fn state_bytes(&self) -> Option<usize> {
        StateLayout::new(&self.config, 1).of_layers(&self.stage().layers).bytes()
    }

    /// The stage that the model is.
    pub(crate) fn stage(&self) -> Stage {
        self.own_part.as_ref().map_or_else(|| Stage::whole(&self.config), |part| part.stage.clone())
    }

    /// Whether this is the part at which logits are gathered.
    pub(crate) fn chooses_tokens(&self) -> bool {
        self.stage().has_head && self.config.split.as_ref().is_none_or(|split| split.rank == 0)
    }

    /// Whether other processes have the rest of the model.
    pub fn is_part(&self) -> bool {
        self.own_part.is_some()
    }

    pub(crate) fn names(&self) -> &'static TensorNames {
        self.architecture.names
    }

    pub(crate) fn shard_blocks(&self) -> ShardBlocks {
        shard_blocks(&self.architecture, &*self.tensors, self.quantize)
    }

    /// The model restricted to a part, whose configuration is `config`.
    pub(crate) fn with_part(mut self, part: OwnPart, config: Arc<DecoderConfig>) -> Self {
        self.architecture.config = (*config).clone();
        (self.config, self.own_part) = (config, Some(part));
        self
    }
}
