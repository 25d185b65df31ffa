//! Weights in the layout of a backend, prepared once and shared by all runners. Does not know files.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_kernels::threads::ThreadPool;

use super::{BackendKind, LoadError, LoadedModel, RunnerOptions};
use crate::adapter::{AdapterError, AdapterLimits, AdapterStore, LoadedAdapter, RandomAdapter};
use crate::arch::Architecture;
use crate::backend::Backend;
use crate::config::{DecoderConfig, Stage};
use crate::cpu_backend::CpuBackend;
use crate::decoder::weights::{DecoderWeights, LoadProgress};
use crate::media::MediaEncoder;
use crate::parallel::{OwnPart, RankLinks, ShardedSource};
use crate::pooling::{Pooler, PoolingRunner};
use crate::quantization::{CachePlace, QuantizePlan, QuantizeReport, Quantizer};
use crate::reference_backend::ReferenceBackend;
use crate::runner::{ModelRunner, RunnerLimits};
use throng_checkpoint::TensorSource;

/// The stored tensors, and how they are quantized.
pub(super) struct UnpreparedWeights<'a> {
    pub(super) architecture: &'a Architecture,
    /// The part that is loaded; `None`: all.
    pub(super) part: Option<&'a OwnPart>,
    pub(super) tensors: &'a dyn TensorSource,
    pub(super) quantize: Option<QuantizePlan>,
    pub(super) cache: Option<&'a CachePlace>,
}

impl UnpreparedWeights<'_> {
    /// Copies the weights to a backend, quantized if requested.
    pub(super) fn load<B: Backend>(
        &self,
        backend: &B,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(DecoderWeights<B>, Option<QuantizeReport>), LoadError> {
        let whole = || Stage::whole(&self.architecture.config);
        let stage = self.part.map_or_else(whole, |part| part.stage.clone());
        self.load_stage(backend, &stage, progress)
    }

    /// Copies the weights of a stage. The quantized copy on disk has the whole model.
    pub(super) fn load_stage<B: Backend>(
        &self,
        backend: &B,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(DecoderWeights<B>, Option<QuantizeReport>), LoadError> {
        let (architecture, tensors) = (self.architecture, self.tensors);
        let is_whole = self.part.is_none() && *stage == Stage::whole(&architecture.config);
        let cache = self.cache.filter(|_| is_whole);
        let sharded = self.part.zip(architecture.config.split.as_ref());
        let sharded =
            sharded.map(|(part, split)| ShardedSource::new(tensors, &part.whole, split, architecture.names));
        let tensors = sharded.as_ref().map_or(tensors, |sharded| sharded as &dyn TensorSource);
        let mut quantizer = self.quantize.map(|plan| Quantizer::new(plan, cache, backend));
        let quantizing = quantizer.as_mut();
        let weights = DecoderWeights::load_with(backend, architecture, tensors, stage, quantizing, progress);
        // Before anything that was read is used or kept.
        tensors.check_unchanged()?;
        Ok((weights?, quantizer.map(Quantizer::finish)))
    }
}

/// The weights of each of this crate's backends that has been prepared.
#[derive(Default)]
pub(super) struct PreparedWeights {
    cpu: Prepared<CpuBackend>,
    reference: Prepared<ReferenceBackend>,
}

/// Pooling of a model's outputs, and its stored tensors.
type PoolerTensors<'a> = (&'a Pooler, &'a Arc<dyn TensorSource>);

/// Parts of a runner beside the decoder.
pub(super) struct Beside<'a> {
    pooler: Option<PoolerTensors<'a>>,
    /// The encoder of pictures, and the token that represents them.
    pub(super) encoder: Option<(Box<dyn MediaEncoder>, u32)>,
    /// Fingerprint of the model, if blocks of the runner may be exported.
    pub(super) fingerprint: Option<Arc<str>>,
}

/// Prepared weights for one backend.
struct Prepared<B: Backend> {
    weights: Mutex<Option<Arc<DecoderWeights<B>>>>,
    adapters: Arc<AdapterStore<B>>,
    report: OnceLock<QuantizeReport>,
}

impl<B: Backend> Default for Prepared<B> {
    fn default() -> Self {
        Self { weights: Mutex::new(None), adapters: Arc::default(), report: OnceLock::new() }
    }
}

impl<B: Backend> Prepared<B> {
    fn get(
        &self,
        backend: &B,
        from: &UnpreparedWeights<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DecoderWeights<B>>, LoadError> {
        // A panic while loading leaves `None`, as before.
        let mut slot = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = &*slot {
            return Ok(Arc::clone(weights));
        }
        let (weights, report) = from.load(backend, progress)?;
        let weights = Arc::new(weights);
        *slot = Some(Arc::clone(&weights));
        if let Some(report) = report {
            self.report.get_or_init(|| report);
        }
        Ok(weights)
    }

    fn runner(
        &self,
        backend: B,
        options: &RunnerOptions,
        config: &Arc<DecoderConfig>,
        from: &UnpreparedWeights<'_>,
        beside: Beside<'_>,
    ) -> Result<Box<dyn Executor>, LoadError> {
        let (weights, adapters) = self.parts(&backend, from)?;
        executor(backend, weights, adapters, &options.limits, config, beside)
    }

    /// Parts that runners share.
    fn parts(&self, backend: &B, from: &UnpreparedWeights<'_>) -> Result<SharedParts<B>, LoadError> {
        Ok((self.get(backend, from, &mut |_| {})?, Arc::clone(&self.adapters)))
    }
}

/// An executor of weights on a backend.
fn executor<B: Backend>(
    backend: B,
    weights: Arc<DecoderWeights<B>>,
    adapters: Arc<AdapterStore<B>>,
    limits: &RunnerLimits,
    config: &Arc<DecoderConfig>,
    beside: Beside<'_>,
) -> Result<Box<dyn Executor>, LoadError> {
    let config = Arc::clone(config);
    if let Some((pooler, tensors)) = beside.pooler {
        let runner = PoolingRunner::new(backend, config, weights, limits, pooler, tensors)?;
        return Ok(Box::new(runner));
    }
    let runner = ModelRunner::new(backend, config, weights, limits)?;
    let mut runner = runner.with_adapters(adapters);
    if let Some(fingerprint) = beside.fingerprint {
        runner = runner.with_fingerprint(fingerprint);
    }
    if let Some((encoder, placeholder_token)) = beside.encoder {
        runner = runner.with_encoder(encoder, placeholder_token)?;
    }
    Ok(Box::new(runner))
}

/// The weights and the adapters of a model on a backend.
type SharedParts<B> = (Arc<DecoderWeights<B>>, Arc<AdapterStore<B>>);

/// Origin of an adapter's numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdapterOrigin<'a> {
    /// A folder as PEFT saves it.
    Peft(&'a Path),
    /// An adapter of random numbers.
    Random(RandomAdapter),
}

impl<B: Backend> Prepared<B> {
    fn load_adapter(
        &self,
        backend: &B,
        config: &DecoderConfig,
        origin: AdapterOrigin<'_>,
        format: Format,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        match origin {
            AdapterOrigin::Peft(folder) => self.adapters.load(backend, config, folder, format, limits),
            AdapterOrigin::Random(random) => {
                self.adapters.load_random(backend, config, random, format, limits)
            }
        }
    }
}

impl PreparedWeights {
    /// Loads an adapter for the runners of a backend.
    pub(super) fn load_adapter(
        &self,
        backend: BackendKind,
        config: &DecoderConfig,
        origin: AdapterOrigin<'_>,
        format: Format,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        match backend.isa() {
            Some(isa) => {
                let backend = CpuBackend::with_isa(1, isa);
                self.cpu.load_adapter(&backend, config, origin, format, limits)
            }
            None => self.reference.load_adapter(&ReferenceBackend, config, origin, format, limits),
        }
    }

    /// Parts that runners on the processor share.
    pub(super) fn on_cpu(
        &self,
        backend: &CpuBackend,
        from: &UnpreparedWeights<'_>,
    ) -> Result<SharedParts<CpuBackend>, LoadError> {
        self.cpu.parts(backend, from)
    }

    /// Parts that runners in plain loops share.
    pub(super) fn on_reference(
        &self,
        from: &UnpreparedWeights<'_>,
    ) -> Result<SharedParts<ReferenceBackend>, LoadError> {
        self.reference.parts(&ReferenceBackend, from)
    }

    pub(super) fn quantize_report(&self) -> Option<&QuantizeReport> {
        self.cpu.report.get().or_else(|| self.reference.report.get())
    }

    pub(super) fn prepare(
        &self,
        backend: BackendKind,
        n_threads: usize,
        from: &UnpreparedWeights<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), LoadError> {
        match backend.isa() {
            Some(isa) => {
                let backend = CpuBackend::with_isa(n_threads, isa);
                self.cpu.get(&backend, from, progress).map(drop)
            }
            None => self.reference.get(&ReferenceBackend, from, progress).map(drop),
        }
    }

    fn runner(
        &self,
        options: &RunnerOptions,
        threads: &Arc<ThreadPool>,
        config: &Arc<DecoderConfig>,
        from: &UnpreparedWeights<'_>,
        beside: Beside<'_>,
    ) -> Result<Box<dyn Executor>, LoadError> {
        match options.backend.isa() {
            Some(_) => self.cpu.runner(CpuBackend::on(Arc::clone(threads)), options, config, from, beside),
            None => self.reference.runner(ReferenceBackend, options, config, from, beside),
        }
    }
}

impl RunnerOptions {
    /// The threads that a runner made with these options computes on.
    ///
    /// # Panics
    /// When the machine does not have the instruction set.
    pub fn threads(&self) -> Arc<ThreadPool> {
        Arc::new(match self.backend.isa() {
            Some(isa) => ThreadPool::with_isa(self.n_threads, isa),
            None => ThreadPool::new(1),
        })
    }
}

impl LoadedModel {
    /// A runner of the own [part](Self::part), on the processor. The one that chooses tokens also encodes
    /// pictures.
    ///
    /// # Errors
    /// Errors of [`Self::runner`].
    pub fn rank_runner(
        &self,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
        links: RankLinks,
    ) -> Result<ModelRunner<CpuBackend>, LoadError> {
        let RankLinks { layers, stages } = links;
        let mut backend = CpuBackend::on(Arc::clone(threads));
        if let Some(group) = layers {
            backend = backend.with_group(group);
        }
        let (weights, _) = self.prepared.on_cpu(&backend, &self.unprepared())?;
        let config = Arc::clone(&self.config);
        let runner = ModelRunner::of_stage(backend, config, weights, &options.limits)?.with_stages(stages);
        match self.media.as_ref().filter(|_| self.chooses_tokens()) {
            None => Ok(runner),
            Some(media) => {
                let encoder = media.encoder(options.backend, threads)?;
                Ok(runner.with_encoder(encoder, media.placeholder_token())?.one_step_at_a_time())
            }
        }
    }

    /// Like [`Self::runner`], on threads that other runners may use too, one at a time.
    ///
    /// # Errors
    /// Errors of [`Self::runner`].
    pub fn runner_on(
        &self,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
    ) -> Result<Box<dyn Executor>, LoadError> {
        let beside = self.beside(options.backend, threads)?;
        self.prepared.runner(options, threads, &self.config, &self.unprepared(), beside)
    }

    /// An executor on any backend, also of another crate, with weights that [`Self::weights_on`] returned and
    /// adapters of a store. Pictures are encoded on the threads of the host.
    ///
    /// # Errors
    /// When memory does not suffice, or the backend does not support the model or such a cache.
    pub fn executor_with<B: Backend>(
        &self,
        backend: B,
        weights: Arc<DecoderWeights<B>>,
        adapters: Arc<AdapterStore<B>>,
        threads: &Arc<ThreadPool>,
        limits: &RunnerLimits,
    ) -> Result<Box<dyn Executor>, LoadError> {
        executor(backend, weights, adapters, limits, &self.config, self.beside(BackendKind::Cpu, threads)?)
    }

    pub(super) fn beside(
        &self,
        backend: BackendKind,
        threads: &Arc<ThreadPool>,
    ) -> Result<Beside<'_>, LoadError> {
        let pooler = self.pooler.as_ref().map(|pooler| (pooler, &self.tensors));
        let encoder = self
            .media
            .as_ref()
            .map(|media| Ok::<_, LoadError>((media.encoder(backend, threads)?, media.placeholder_token())));
        let fingerprint = self.fingerprint.get().cloned();
        Ok(Beside { pooler, encoder: encoder.transpose()?, fingerprint })
    }
}
