//! A model in two stages on two backends. Does not know the backends.

use std::sync::Arc;

use throng_core::scheduling::executor::Executor;
use throng_kernels::threads::ThreadPool;

use super::{BackendKind, LoadError, LoadedModel};
use crate::backend::Backend;
use crate::parallel::PartError;
use crate::runner::{RunnerLimits, SplitRunner, StageOn};

impl LoadedModel {
    /// An executor on two backends, the second of which has the head, with weights that [`Self::stage_on`]
    /// returned. Pictures are encoded on the threads of the host.
    ///
    /// # Errors
    /// When memory does not suffice, a backend does not support such a cache, or the model answers with
    /// vectors.
    ///
    /// # Panics
    /// When the stages together are not the model.
    pub fn split_executor<F: Backend, S: Backend>(
        &self,
        first: StageOn<F>,
        second: StageOn<S>,
        threads: &Arc<ThreadPool>,
        limits: &RunnerLimits,
    ) -> Result<Box<dyn Executor>, LoadError> {
        if self.pooler.is_some() {
            return Err(PartError::Pooling.into());
        }
        let beside = self.beside(BackendKind::Cpu, threads)?;
        let mut runner = SplitRunner::new(first, second, &self.config, limits)?;
        if let Some(fingerprint) = beside.fingerprint {
            runner = runner.with_fingerprint(fingerprint);
        }
        if let Some((encoder, placeholder_token)) = beside.encoder {
            runner = runner.with_encoder(encoder, placeholder_token)?;
        }
        Ok(Box::new(runner))
    }
}
