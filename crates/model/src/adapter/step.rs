//! The adapters of one step: the adapter of each row, held until the next step begins. Does not know layers.

use std::sync::Arc;

use throng_core::request::AdapterId;
use throng_core::scheduling::batch::ScheduledBatch;

use super::{AdapterStore, AdapterWeights, LayerAdapter};
use crate::backend::{DeviceMemory, RowGroups};

/// The rows of a step by adapter.
pub struct StepAdapters<B: DeviceMemory> {
    /// The tokens of each adapter.
    pub(crate) groups: RowGroups,
    /// Id of each group's adapter.
    ids: Vec<AdapterId>,
    weights: Vec<Arc<AdapterWeights<B>>>,
    /// Group of each token; `None` without an adapter.
    group_of: Vec<Option<usize>>,
    /// Sequences whose adapter is not loaded.
    unknown: Vec<usize>,
}

impl<B: DeviceMemory> Default for StepAdapters<B> {
    fn default() -> Self {
        let (ids, weights, group_of, unknown) = Default::default();
        Self { groups: RowGroups::default(), ids, weights, group_of, unknown }
    }
}

impl<B: DeviceMemory> StepAdapters<B> {
    /// Takes the adapters of a batch from the store. A sequence whose adapter is not loaded is computed
    /// without it and is [unknown](Self::unknown).
    pub fn fill(&mut self, batch: &ScheduledBatch, store: &AdapterStore<B>) {
        self.ids.clear();
        self.weights.clear();
        self.group_of.clear();
        self.unknown.clear();
        if batch.sequences().iter().any(|scheduled| scheduled.adapter.is_some()) {
            for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
                let group = scheduled.adapter.and_then(|id| self.group(id, store));
                if scheduled.adapter.is_some() && group.is_none() {
                    self.unknown.push(sequence_idx);
                }
                self.group_of.extend(std::iter::repeat_n(group, batch.tokens(scheduled).len()));
            }
        }
        self.groups.set(self.ids.len(), &self.group_of);
    }

    fn group(&mut self, id: AdapterId, store: &AdapterStore<B>) -> Option<usize> {
        if let Some(group) = self.ids.iter().position(|known| *known == id) {
            return Some(group);
        }
        self.weights.push(store.get(id)?);
        self.ids.push(id);
        Some(self.ids.len() - 1)
    }

    /// Whether no adapter changes anything in the step.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Sequences whose adapter is not loaded, increasing.
    pub fn unknown(&self) -> &[usize] {
        &self.unknown
    }

    /// Whether an adapter of the step changes a part of a layer.
    pub(crate) fn any(&self, layer_idx: usize, part: impl Fn(&LayerAdapter<B>) -> bool) -> bool {
        self.weights.iter().any(|weights| part(&weights.layers[layer_idx]))
    }

    /// Changes of a group's adapter in a layer.
    pub(crate) fn layer(&self, group: usize, layer_idx: usize) -> &LayerAdapter<B> {
        &self.weights[group].layers[layer_idx]
    }
}
