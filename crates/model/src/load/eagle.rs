//! EAGLE-3 heads of an open model. Does not know how they compute and how drafts are verified.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::executor::Executor;
use throng_kernels::threads::ThreadPool;

use super::json_file::{read, read_object};
use super::{LoadError, LoadedModel, RunnerOptions};
use crate::adapter::AdapterStore;
use crate::backend::Backend;
use crate::cpu_backend::CpuBackend;
use crate::decoder::weights::DecoderWeights;
use crate::drafting::DraftingExecutor;
use crate::eagle::{FeatureTap, Features, HeadConfig, HeadRunner, HeadWeights};
use crate::kv_cache::{KvDtype, KvLayout};
use crate::reference_backend::ReferenceBackend;
use crate::runner::ModelRunner;
use throng_checkpoint::TensorSource;
use throng_checkpoint::safetensors::SafetensorsFolder;

/// An EAGLE-3 head that fits a model, with its mapped weights.
pub struct EagleHead {
    config: Arc<HeadConfig>,
    /// Indices of the model's layers that the head reads.
    layers: [usize; 3],
    vocabulary_size: usize,
    tensors: SafetensorsFolder,
    cpu: Prepared<CpuBackend>,
    reference: Prepared<ReferenceBackend>,
}

/// Prepared weights for one backend.
type Prepared<B> = Mutex<Option<Arc<HeadWeights<B>>>>;

/// Whether the folder's `config.json` is that of an EAGLE-3 head.
///
/// # Errors
/// When it cannot be read.
pub fn is_eagle_head(folder: &Path) -> Result<bool, LoadError> {
    let config = read_object(folder, "config.json")?;
    let architectures = config.get("architectures").and_then(|names| names.as_array());
    let is_eagle = |name: &serde_json::Value| name.as_str().is_some_and(|name| name.contains("Eagle3"));
    Ok(architectures.is_some_and(|names| names.iter().any(is_eagle)))
}

impl EagleHead {
    /// Opens the head in `folder`, a `config.json` and safetensors, for `model`.
    ///
    /// # Errors
    /// When files are missing or broken, or it is a head of another model.
    pub fn open(folder: &Path, model: &LoadedModel) -> Result<Self, LoadError> {
        let path = folder.join("config.json");
        let reason = "the folder has no config.json".to_owned();
        let json = read(&path)?.ok_or_else(|| LoadError::NotAModel { path: folder.to_owned(), reason })?;
        let config = HeadConfig::parse(&json)?;
        let misfit = |what: &str, of_head: usize, of_model: usize| {
            let reason = format!("the EAGLE-3 head is of another model: {what} is {of_head}, not {of_model}");
            LoadError::Malformed { path: PathBuf::from(&path), reason }
        };
        let (hidden, vocabulary_size) = (model.config.hidden_size, model.config.vocabulary_size);
        if config.target_hidden_size != hidden {
            return Err(misfit("the width of what it reads", config.target_hidden_size, hidden));
        }
        let tensors = SafetensorsFolder::open(folder)?;
        if tensors.tensor("embed_tokens.weight").is_none() && config.decoder.hidden_size != hidden {
            return Err(misfit("the width of the embeddings", config.decoder.hidden_size, hidden));
        }
        Ok(Self {
            layers: config.layers_of(model.config.layers.len())?,
            config: Arc::new(config),
            vocabulary_size,
            tensors,
            cpu: Prepared::default(),
            reference: Prepared::default(),
        })
    }

    /// Bytes of a block of 16 tokens in the head's KV cache and in the features of the model; `None` when
    /// `dtype` cannot hold its heads.
    pub fn block_bytes(&self, dtype: KvDtype) -> Option<u64> {
        let width = self.config.decoder.hidden_size;
        let features = BLOCK_TOKENS.checked_mul(width)?.checked_mul(size_of::<f32>())?;
        KvLayout::new(&self.config.decoder, dtype, 1).bytes()?.checked_add(features)?.try_into().ok()
    }

    fn weights<B: Backend>(
        &self,
        backend: &B,
        prepared: &Prepared<B>,
    ) -> Result<Arc<HeadWeights<B>>, LoadError> {
        // A panic while loading leaves `None`, as before.
        let mut slot = prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = &*slot {
            return Ok(Arc::clone(weights));
        }
        let weights = HeadWeights::load(backend, &self.config, &self.tensors, self.vocabulary_size);
        self.tensors.check_unchanged()?;
        let weights = Arc::new(weights?);
        *slot = Some(Arc::clone(&weights));
        Ok(weights)
    }

    /// The executors of a model and of its head, on two backends of one device.
    pub(super) fn runners<B: Backend>(
        &self,
        [backend, of_head]: [B; 2],
        model: &LoadedModel,
        weights: Arc<DecoderWeights<B>>,
        adapters: Arc<AdapterStore<B>>,
        prepared: &Prepared<B>,
        options: &RunnerOptions,
        kv_dtype: KvDtype,
    ) -> Result<ModelAndHead, LoadError> {
        let limits = &options.limits;
        let head_weights = self.weights(&of_head, prepared)?;
        let features = Features::new(limits.n_blocks, self.config.decoder.hidden_size)?;
        let (of_tap, shared) = (Arc::clone(&head_weights), Arc::clone(&features));
        let tap = FeatureTap::new(&backend, self.layers, of_tap, shared, limits.max_batch_tokens)?;
        let of_model = Arc::clone(&weights);
        let runner = ModelRunner::new(backend, Arc::clone(&model.config), weights, limits)?;
        let head = HeadRunner::new(
            of_head,
            Arc::clone(&self.config),
            head_weights,
            of_model,
            runner.capacity(),
            kv_dtype,
            features,
        )?;
        Ok(ModelAndHead {
            model: Box::new(runner.with_adapters(adapters).with_tap(tap)),
            head: Box::new(head),
        })
    }
}

/// The executor of a model that keeps the head's features, and the head's executor.
pub struct ModelAndHead {
    /// Executor of the model.
    pub model: Box<dyn Executor>,
    /// The head, or its replacement.
    pub head: Box<dyn Executor>,
}

impl ModelAndHead {
    /// Combines both into one executor, in which the head makes drafts for the model.
    pub fn drafting(self) -> DraftingExecutor {
        DraftingExecutor::new(self.model, self.head).of_head()
    }
}

impl LoadedModel {
    /// Like [`Self::runner_on`], with a head whose keys and values are held in `kv_dtype`.
    ///
    /// # Errors
    /// Errors of [`Self::runner`], and when the head's tensors are missing or of wrong shapes.
    pub fn runner_with_head(
        &self,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
        head: &EagleHead,
        kv_dtype: KvDtype,
    ) -> Result<ModelAndHead, LoadError> {
        match options.backend.isa() {
            Some(_) => {
                let backends = [(); 2].map(|()| CpuBackend::on(Arc::clone(threads)));
                let (weights, adapters) = self.prepared.on_cpu(&backends[0], &self.unprepared())?;
                head.runners(backends, self, weights, adapters, &head.cpu, options, kv_dtype)
            }
            None => {
                let (weights, adapters) = self.prepared.on_reference(&self.unprepared())?;
                let backends = [(); 2].map(|()| ReferenceBackend);
                head.runners(backends, self, weights, adapters, &head.reference, options, kv_dtype)
            }
        }
    }
}
