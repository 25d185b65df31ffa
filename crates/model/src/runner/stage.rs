//! A runner of a part of a model: activations arrive from the stage before and go to the next one, and
//! another rank answers the steps that this one follows. Does not know how ranks communicate.

use std::time::Duration;

use throng_core::scheduling::batch::ScheduledBatch;
use throng_core::scheduling::executor::{ExecutorCapacity, ExecutorError, MAX_STEPS_IN_FLIGHT};

use super::{ModelRunner, RunnerStep, executor_error};
use crate::backend::{Backend, BackendError};
use crate::batch_input::BatchInput;
use crate::decoder::Decoder;
use crate::parallel::StageLinks;

/// Runs the layers of a stage.
pub(super) fn run_stage<B: Backend>(
    backend: &mut B,
    decoder: &mut Decoder<B>,
    cache: &mut B::KvCache,
    stages: &mut StageLinks,
    step: &RunnerStep<B>,
) -> Result<(), BackendError> {
    if decoder.stage().embeds {
        decoder.forward_with(backend, cache, &step.input, &step.adapters);
    } else {
        let residual = stages.receive(step.input.n_tokens() * decoder.config().hidden_size)?;
        decoder.forward_from(backend, cache, &step.input, residual, &step.adapters);
    }
    if decoder.stage().has_head { Ok(()) } else { stages.send(decoder.residual(backend)?) }
}

impl<B: Backend> ModelRunner<B> {
    /// Connects the runner with those of other stages.
    #[must_use]
    pub(crate) fn with_stages(self, stages: Option<StageLinks>) -> Self {
        let n_stages = stages.as_ref().map_or(1, StageLinks::n_processes).min(MAX_STEPS_IN_FLIGHT) as u32;
        let max_steps_in_flight = if n_stages > 1 { n_stages } else { self.capacity.max_steps_in_flight };
        let capacity = ExecutorCapacity { n_stages, max_steps_in_flight, ..self.capacity };
        Self { stages, capacity, ..self }
    }

    /// Keeps steps from being in flight: features of pictures, which may be large, go to a stage that is not
    /// busy with another step.
    #[must_use]
    pub(crate) fn one_step_at_a_time(self) -> Self {
        let capacity = ExecutorCapacity { n_stages: 1, max_steps_in_flight: 1, ..self.capacity };
        Self { capacity, ..self }
    }

    /// Time in exchanges with other ranks, waiting for them included.
    pub(crate) fn exchanging(&self) -> Duration {
        let stages = self.stages.as_ref().map_or(Duration::ZERO, |stages| stages.usage().took);
        self.backend.exchanging() + stages
    }

    /// Width of the residual stream.
    pub(crate) fn width(&self) -> usize {
        self.decoder.config().hidden_size
    }

    /// The input of the step that was submitted last.
    pub(crate) fn newest_input(&self) -> Option<&BatchInput> {
        Some(&self.in_flight.back()?.input)
    }

    /// Drops the oldest step that was submitted and not collected.
    pub(super) fn discard_oldest(&mut self) {
        self.spare_steps.extend(self.in_flight.pop_front());
    }

    /// Prepares a step whose tokens another rank chooses.
    ///
    /// # Errors
    /// When the step cannot be run.
    pub(crate) fn prepare_to_follow(
        &mut self,
        batch: &ScheduledBatch,
    ) -> Result<FollowedStep<B>, ExecutorError> {
        let mut step = self.spare_steps.pop().unwrap_or_else(RunnerStep::new);
        step.prepare(batch, &self.adapters)?;
        Ok(FollowedStep { step, joins_pictures: self.decoder.config().joins_pictures })
    }

    /// Runs a step whose tokens another rank chooses: the same operations in the same order as on that rank.
    ///
    /// # Errors
    /// When the step failed here, or a rank is lost.
    pub(crate) fn follow(&mut self, followed: FollowedStep<B>) -> Result<(), ExecutorError> {
        let mut step = followed.step;
        self.forward(&mut step, None).map_err(executor_error)?;
        if self.decoder.stage().has_head {
            for first in (0..step.wanted.len()).step_by(self.max_logit_rows) {
                let piece = first..step.wanted.len().min(first + self.max_logit_rows);
                let logits = self.decoder.logits(&mut self.backend, piece);
                self.backend.download(logits).map_err(executor_error)?;
            }
        }
        self.spare_steps.push(step);
        Ok(())
    }
}

/// A step whose tokens another rank chooses.
pub(crate) struct FollowedStep<B: Backend> {
    step: RunnerStep<B>,
    joins_pictures: bool,
}

impl<B: Backend> FollowedStep<B> {
    /// Sets the positions of pictures, and returns the input, to which their features are added.
    pub(crate) fn add_pictures(&mut self, batch: &ScheduledBatch) -> &mut BatchInput {
        self.step.input.fill_rotary(batch);
        if self.joins_pictures {
            self.step.input.fill_ends(batch);
        }
        &mut self.step.input
    }
}
