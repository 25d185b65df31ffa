//! Sizes of the KV cache: bytes of the keys and values of a token. Does not know where they lie and who owns
//! a block.

use std::ops::Range;

use throng_core::scheduling::batch::BLOCK_TOKENS;

use crate::config::DecoderConfig;
pub use crate::shapes::{KvDtype, KvShape, UnknownKvDtype};

/// The shape of a KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    /// Number of blocks of 16 tokens. A block is a block of every layer.
    pub n_blocks: usize,
    /// Shape of each layer's keys and values, `None` for a layer without its own, followed by the shapes of
    /// the keys of indexers.
    pub layers: Vec<Option<KvShape>>,
}

impl KvLayout {
    /// Layout of the cache of a model.
    pub fn new(config: &DecoderConfig, dtype: KvDtype, n_blocks: usize) -> Self {
        let layer =
            config.layers.iter().map(|layer| Some(KvShape::of(&layer.mixer.cache_shape()?, n_blocks, dtype)));
        let of_indexers = config.index_shapes().map(|shape| Some(KvShape::of(&shape, n_blocks, dtype)));
        Self { n_blocks, layers: layer.chain(of_indexers).collect() }
    }

    /// Restricts the cache to these layers. Keys of indexers stay: models that have some are not divided.
    #[must_use]
    pub fn of_layers(mut self, layers: &Range<usize>) -> Self {
        for (layer_idx, layer) in self.layers.iter_mut().enumerate() {
            let is_of_indexer = layer.is_some_and(|shape| shape.values_in_keys == Some(0));
            if !layers.contains(&layer_idx) && !is_of_indexer {
                *layer = None;
            }
        }
        self
    }

    /// Bytes of one token over all layers; `None` when a dtype cannot hold such heads or the number
    /// overflows.
    pub fn bytes_per_token(&self) -> Option<usize> {
        let mut shapes = self.layers.iter().flatten();
        shapes.try_fold(0_usize, |sum, shape| sum.checked_add(shape.bytes_per_token()?))
    }

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(&self) -> Option<usize> {
        self.bytes_per_token()?.checked_mul(BLOCK_TOKENS)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes_per_block()?.checked_mul(self.n_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_dtype() {
        let layout = |dtype, head_dim| {
            let layer = KvShape { n_blocks: 5, n_kv_heads: 2, head_dim, dtype, values_in_keys: None };
            KvLayout { n_blocks: 5, layers: vec![Some(layer), None, Some(layer), Some(layer)] }
        };
        assert_eq!(layout(KvDtype::F32, 64).bytes_per_token(), Some(3 * 2 * 2 * 64 * 4));
        assert_eq!(layout(KvDtype::F16, 64).bytes_per_block(), Some(3 * 2 * 2 * 64 * 2 * 16));
        assert_eq!(layout(KvDtype::Q8_0, 64).bytes(), Some(3 * 2 * 2 * 68 * 16 * 5));
        assert_eq!(layout(KvDtype::Q8_0, 80).bytes(), None);
        assert_eq!(layout(KvDtype::BF16, 64).bytes(), layout(KvDtype::F16, 64).bytes());
        assert_eq!(layout(KvDtype::BF16, 80).bytes(), None);
        assert_eq!(layout(KvDtype::F32, usize::MAX / 2).bytes(), None);
    }
}
