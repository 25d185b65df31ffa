//! A decoder that is divided over devices layer by layer (tensor parallelism): which part of its heads and
//! widths one of them has. Does not know how tensors are cut and sums are exchanged.

use super::{AttentionConfig, DecoderConfig, FeedForward, HybridConfig, LatentConfig, Mixer, QkNorm};

/// Reason why a decoder cannot be divided over so many devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The rank is not below the number of ranks.
    #[error("rank {rank} of {n_ranks}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Devices.
        n_ranks: usize,
    },
    /// A number of heads or a width is not a multiple of the number of ranks.
    #[error("layer {layer_idx}: {n} {what} cannot be divided by {n_ranks}")]
    Indivisible {
        /// The layer.
        layer_idx: usize,
        /// Part that is to be divided.
        what: &'static str,
        /// Number of threads.
        n: usize,
        /// Devices.
        n_ranks: usize,
    },
    /// A norm reads all heads of a layer.
    #[error("layer {layer_idx}: a norm over all heads cannot be divided")]
    NormOfAllHeads {
        /// The layer.
        layer_idx: usize,
    },
}

impl DecoderConfig {
    /// Part of the decoder on device `rank` of `n_ranks`: its share of the heads of attention and of the
    /// width of each feed-forward network, experts included. All shares are equal, and their sizes sum to the
    /// whole.
    ///
    /// The residual stream, the vocabulary, routers and recurrent mixers are whole on each device.
    ///
    /// # Errors
    /// When heads or widths are no multiples of the number of ranks, or something reads all heads together.
    pub fn shard(&self, rank: usize, n_ranks: usize) -> Result<Self, ShardError> {
        if rank >= n_ranks {
            return Err(ShardError::Rank { rank, n_ranks });
        }
        let mut shard = self.clone();
        for (layer_idx, layer) in shard.layers.iter_mut().enumerate() {
            let part = Part { layer_idx, n_ranks };
            match &mut layer.mixer {
                Mixer::Attention(attention) | Mixer::Hybrid(HybridConfig { attention, .. }) => {
                    part.divide_attention(attention)?;
                }
                Mixer::Latent(LatentConfig { n_heads, .. }) => part.divide(n_heads, "query heads")?,
                Mixer::ShortConv { .. } | Mixer::GatedDelta(_) | Mixer::StateSpace(_) | Mixer::None => {}
            }
            match &mut layer.feed_forward {
                FeedForward::None => {}
                FeedForward::Dense { width } => part.divide(width, "columns of the feed-forward")?,
                FeedForward::Experts { width, shared, .. } => {
                    part.divide(width, "columns of an expert")?;
                    if let Some(shared) = shared {
                        part.divide(&mut shared.width, "columns of the shared expert")?;
                    }
                }
            }
        }
        Ok(shard)
    }
}

/// One layer's part.
struct Part {
    layer_idx: usize,
    n_ranks: usize,
}

impl Part {
    fn divide(&self, n: &mut usize, what: &'static str) -> Result<(), ShardError> {
        let &Self { layer_idx, n_ranks } = self;
        if !n.is_multiple_of(n_ranks) {
            return Err(ShardError::Indivisible { layer_idx, what, n: *n, n_ranks });
        }
        *n /= n_ranks;
        Ok(())
    }

    fn divide_attention(&self, attention: &mut AttentionConfig) -> Result<(), ShardError> {
        if attention.qk_norm == QkNorm::WholeWidth && self.n_ranks > 1 {
            return Err(ShardError::NormOfAllHeads { layer_idx: self.layer_idx });
        }
        self.divide(&mut attention.n_heads, "query heads")?;
        self.divide(&mut attention.n_kv_heads, "key and value heads")
    }
}
