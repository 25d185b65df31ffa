//! Unread parts of a model's files: keys of its configuration and tensors. Does not know their meaning.

use super::{LoadError, LoadedModel};
use crate::tensor_check::{groups, unread_tensors};

impl LoadedModel {
    /// Keys of the `config.json` that were not read and that, as far as is known, do not change results.
    pub fn unread_keys(&self) -> &[String] {
        &self.architecture.unread_keys
    }

    /// Unread tensors of any type.
    pub fn unread_tensors(&self) -> &[String] {
        &self.unread_tensors
    }

    /// Whether the `model_type` is that of a family; else the model is computed like Llama, with the
    /// variations that its files show.
    pub fn has_named_family(&self) -> bool {
        self.config.family != crate::arch::UNNAMED
    }

    /// Checks names, types and shapes of all tensors, and notes the unread ones.
    pub(super) fn check_tensors(&mut self) -> Result<(), LoadError> {
        self.unread_tensors = unread_tensors(&self.architecture, &*self.tensors)?;
        if let Some(pooler) = &self.pooler {
            let of_head = pooler.check(&*self.tensors, self.config.hidden_size)?;
            self.unread_tensors.retain(|name| !of_head.contains(name));
        }
        let keys = self.unread_keys();
        if !keys.is_empty() {
            tracing::warn!(
                "nothing reads these keys of config.json: {} (--strict-config refuses such a model)",
                keys.join(", ")
            );
        }
        Ok(())
    }

    /// Logs the unread tensors, once all parts of the model are known.
    pub fn log_unread_tensors(&self) {
        if !self.unread_tensors.is_empty() {
            let named = groups(&self.unread_tensors).into_iter().map(|(name, n)| format!("{name} ({n})"));
            let named = named.collect::<Vec<_>>().join(", ");
            tracing::info!("{} tensors are not read: {named}", self.unread_tensors.len());
        }
    }
}
