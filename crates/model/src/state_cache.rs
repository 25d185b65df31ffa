//! Sizes of recurrent states: bytes of the state of a sequence. Does not know where states lie and who owns a
//! slot.

use std::ops::Range;

use crate::config::DecoderConfig;
pub use crate::shapes::StateLayerShape;

/// The shape of the recurrent states of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    /// Number of slots, each of which holds the state of one sequence in every layer.
    pub n_slots: usize,
    /// Shape of each layer's state; `None` for a layer without one.
    pub layers: Vec<Option<StateLayerShape>>,
}

impl StateLayout {
    /// The states of a model: no slots where it has no recurrent layers.
    pub fn new(config: &DecoderConfig, n_slots: usize) -> Self {
        let layers = config.layers.iter().map(|layer| layer.mixer.state(config.hidden_size)).collect();
        Self { n_slots: if config.is_recurrent() { n_slots } else { 0 }, layers }
    }

    /// Restricts the states to these layers.
    #[must_use]
    pub fn of_layers(mut self, layers: &Range<usize>) -> Self {
        let others = self.layers.iter_mut().enumerate().filter(|(layer_idx, _)| !layers.contains(layer_idx));
        others.for_each(|(_, layer)| *layer = None);
        self
    }

    /// Bytes of one sequence's state over all layers; `None` when they overflow.
    pub fn bytes_per_slot(&self) -> Option<usize> {
        let mut shapes = self.layers.iter().flatten();
        let n_elements = shapes.try_fold(0_usize, |sum, shape| sum.checked_add(shape.n_elements()?))?;
        n_elements.checked_mul(size_of::<f32>())
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes_per_slot()?.checked_mul(self.n_slots)
    }
}
