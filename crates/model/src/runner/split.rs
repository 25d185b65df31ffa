//! A model in two stages on two backends of one process: the first stage computes its layers of a step, then
//! the second one, which chooses the tokens. The residual stream crosses once a step. Does not know which
//! backends there are.

use std::sync::Arc;

use throng_core::scheduling::batch::{BlockId, ScheduledBatch, StepOutput};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

use super::stage::FollowedStep;
use super::{ModelRunner, RunnerLimits};
use crate::adapter::AdapterStore;
use crate::backend::{Backend, BackendError};
use crate::config::DecoderConfig;
use crate::decoder::weights::DecoderWeights;
use crate::media::MediaEncoder;
use crate::parallel::StageLinks;

/// A stage of a model on a backend.
pub struct StageOn<B: Backend> {
    /// Backend that computes the stage.
    pub backend: B,
    /// Weights of the stage.
    pub weights: Arc<DecoderWeights<B>>,
    /// Adapters, which have the same numbers on both backends.
    pub adapters: Arc<AdapterStore<B>>,
}

/// Runs batches on two backends, one after the other.
pub struct SplitRunner<F: Backend, S: Backend> {
    first: ModelRunner<F>,
    second: ModelRunner<S>,
    /// The step that was submitted, for the first stage.
    submitted: Option<FollowedStep<F>>,
}

impl<F: Backend, S: Backend> SplitRunner<F, S> {
    /// A runner with a KV cache on each backend for the layers that it computes.
    ///
    /// # Errors
    /// When the memory of a backend does not suffice or it does not support such a cache.
    ///
    /// # Panics
    /// When the stages together are not the model.
    pub fn new(
        first: StageOn<F>,
        second: StageOn<S>,
        config: &Arc<DecoderConfig>,
        limits: &RunnerLimits,
    ) -> Result<Self, BackendError> {
        let (of_first, of_second) = (first.weights.stage(), second.weights.stage());
        assert!(of_first.embeds && !of_first.has_head, "the first stage begins with tokens");
        assert!(!of_second.embeds && of_second.has_head, "the second stage ends with logits");
        let all = 0..config.layers.len();
        let has_all = of_first.layers.end == of_second.layers.start
            && (of_first.layers.start..of_second.layers.end) == all;
        assert!(has_all, "the stages have all layers");
        let [to_second, from_first] = StageLinks::in_process();
        let StageOn { backend, weights, adapters } = first;
        let first = ModelRunner::of_stage(backend, Arc::clone(config), weights, limits)?;
        let first = first.with_adapters(adapters).with_stages(Some(to_second));
        let StageOn { backend, weights, adapters } = second;
        let second = ModelRunner::of_stage(backend, Arc::clone(config), weights, limits)?;
        let second = second.with_adapters(adapters).with_stages(Some(from_first)).one_step_at_a_time();
        Ok(Self { first, second, submitted: None })
    }

    /// Sets the encoder of pictures in prompts, as [`ModelRunner::with_encoder`].
    ///
    /// # Errors
    /// When a backend does not take features.
    pub fn with_encoder(
        self,
        encoder: Box<dyn MediaEncoder>,
        placeholder_token: u32,
    ) -> Result<Self, BackendError> {
        let second = self.second.with_encoder(encoder, placeholder_token)?.one_step_at_a_time();
        Ok(Self { second, ..self })
    }

    /// Sets the fingerprint, as [`ModelRunner::with_fingerprint`].
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: Arc<str>) -> Self {
        let first = self.first.with_fingerprint(Arc::clone(&fingerprint));
        Self { first, second: self.second.with_fingerprint(fingerprint), ..self }
    }
}

impl<F: Backend, S: Backend> Executor for SplitRunner<F, S> {
    fn capacity(&self) -> ExecutorCapacity {
        self.second.capacity()
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        let mut step = self.first.prepare_to_follow(batch)?;
        self.second.submit(batch)?;
        if self.second.capacity().takes_media
            && let Some(input) = self.second.newest_input()
        {
            let own = step.add_pictures(batch);
            own.tokens.clone_from(&input.tokens);
            own.features.clone_from(&input.features);
        }
        self.submitted = Some(step);
        Ok(())
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let Some(step) = self.submitted.take() else {
            return Err(ExecutorError::Device("no step was submitted".to_owned()));
        };
        if let Err(error) = self.first.follow(step) {
            self.second.discard_oldest();
            return Err(error);
        }
        self.second.collect(batch, output)
    }

    /// The bytes of a block in the first stage's layout, then those in the second one's. Recurrent states do
    /// not leave the stages.
    fn block_layout(&self) -> Option<BlockLayout> {
        let (first, second) = (self.first.exchanged_layout()?, self.second.exchanged_layout()?);
        if self.capacity().n_state_slots > 0 {
            return None;
        }
        let name = format!("{} then {}", first.name, second.name).into();
        Some(BlockLayout { name, n_bytes: first.n_bytes + second.n_bytes, ..first })
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        let layout = self.block_layout().ok_or(BlockExchangeError::Unsupported)?;
        let parts = [self.first.export(blocks)?, self.second.export(blocks)?];
        let mut bytes = Vec::with_capacity(layout.n_bytes * blocks.len());
        for i in 0..blocks.len() {
            for ExportedBlocks { layout, bytes: of_part } in &parts {
                bytes.extend_from_slice(&of_part[i * layout.n_bytes..][..layout.n_bytes]);
            }
        }
        Ok(ExportedBlocks { layout, bytes })
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        let layout = self.block_layout().ok_or(BlockExchangeError::Unsupported)?;
        // Before the blocks of the first stage are changed.
        if self.submitted.is_some() {
            return Err(BlockExchangeError::StepInFlight);
        }
        exported.check(&layout, to.len())?;
        let part = |layout: BlockLayout| ExportedBlocks { layout, bytes: Vec::new() };
        let (Some(first), Some(second)) = (self.first.exchanged_layout(), self.second.exchanged_layout())
        else {
            return Err(BlockExchangeError::Unsupported);
        };
        let (mut first, mut second) = (part(first), part(second));
        for block in exported.bytes.chunks_exact(layout.n_bytes.max(1)) {
            let (of_first, of_second) = block.split_at(first.layout.n_bytes);
            first.bytes.extend_from_slice(of_first);
            second.bytes.extend_from_slice(of_second);
        }
        self.first.import(&first, to)?;
        self.second.import(&second, to)
    }
}
