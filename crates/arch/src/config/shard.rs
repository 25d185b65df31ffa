//! A decoder that is divided over devices within each layer (tensor parallelism): the heads and widths of
//! each device. Does not know how tensors are cut and sums are exchanged.

use std::ops::Range;

use super::{AttentionConfig, DecoderConfig, FeedForward, HybridConfig, LatentConfig, Mixer, QkNorm};
use super::{DeltaShape, StateSpaceShape};

/// Reason why a decoder cannot be divided over this number of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The rank is not below the number of ranks.
    #[error("rank {rank} of {n_ranks}")]
    Rank {
        /// Index of the rank.
        rank: usize,
        /// Number of devices.
        n_ranks: usize,
    },
    /// There are fewer parts than ranks.
    #[error(
        "layer {layer_idx}: {n} {what} cannot be divided over {n_ranks} ranks in whole blocks of {block} weights"
    )]
    TooFew {
        /// Index of the layer.
        layer_idx: usize,
        /// Parts that are to be divided.
        what: &'static str,
        /// Number of parts to divide.
        n: usize,
        /// Number of devices.
        n_ranks: usize,
        /// Weights that are stored together.
        block: usize,
    },
    /// Encoders are not divided.
    #[error("{family} reads texts in both directions; such models are not divided")]
    Encoder {
        /// Name of the family.
        family: &'static str,
    },
}

/// Weights that are stored together in the rows of matrices that are divided by columns: parts begin at the
/// limits of such blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardBlocks {
    /// Number of weights of mixers' output projections that are stored together.
    pub mixer: usize,
    /// Number of weights of down projections, of dense networks and of shared experts, that are stored
    /// together.
    pub feed_forward: usize,
    /// Number of weights of experts' down projections that are stored together.
    pub experts: usize,
}

impl ShardBlocks {
    /// Weights that are stored one by one.
    pub const SINGLE: Self = Self { mixer: 1, feed_forward: 1, experts: 1 };
}

/// The part of a divided decoder that one device has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Index of the device.
    pub rank: usize,
    /// Rows of the embedding table and of the head that each device has, in order of rank.
    pub vocabularies: Vec<Range<usize>>,
    /// Parts of the layers that this device has.
    pub layers: Vec<LayerSplit>,
}

impl Split {
    /// Rows of the embedding table and of the head that this device has.
    pub fn vocabulary(&self) -> Range<usize> {
        self.vocabularies[self.rank].clone()
    }

    /// Number of devices.
    pub fn n_ranks(&self) -> usize {
        self.vocabularies.len()
    }
}

/// The part of a layer that one device has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSplit {
    /// Heads of attention: those of queries, and as groups those of keys and values. For latent attention,
    /// whose heads share one key, without groups.
    pub attention: HeadSplit,
    /// Heads of a recurrent mixer: those of values, and as groups those of queries and keys, or the groups of
    /// a state space model. For a short convolution each channel counts as a head.
    pub states: HeadSplit,
    /// Width of state space outputs that are normed together where a device has only a part of it; `None`
    /// where each has whole such groups.
    pub state_norm_width: Option<usize>,
    /// Columns of the hidden layer of the feed-forward network, or of each expert.
    pub feed_forward: Range<usize>,
    /// Columns of the hidden layer of the shared expert.
    pub shared: Range<usize>,
}

/// Heads that one device has, with the groups that they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadSplit {
    /// Number of heads of the whole layer.
    pub n_heads: usize,
    /// Number of groups of the whole layer.
    pub n_groups: usize,
    /// Heads that the device has.
    pub heads: Range<usize>,
    /// Groups of the part. If there are fewer groups than devices, several devices have the same group.
    pub groups: Range<usize>,
    /// Whether it is the first device with its groups.
    pub is_first: bool,
}

impl DecoderConfig {
    /// Part of the decoder on device `rank` of `n_ranks`: its share of the heads of mixers, of the width of
    /// each feed-forward network, experts included, and of the vocabulary. Shares are as equal as blocks and
    /// groups of heads allow, and their sizes sum to the whole, but for groups that several devices have.
    ///
    /// The residual stream, routers and embeddings for single layers are whole on each device.
    ///
    /// # Errors
    /// When there are fewer heads or blocks than ranks.
    pub fn shard(&self, rank: usize, n_ranks: usize, blocks: ShardBlocks) -> Result<Self, ShardError> {
        if rank >= n_ranks {
            return Err(ShardError::Rank { rank, n_ranks });
        }
        if self.is_bidirectional() || self.encoder.is_some() || self.relative.is_some() {
            return Err(ShardError::Encoder { family: self.family });
        }
        let mut shard = self.clone();
        if n_ranks == 1 {
            return Ok(shard);
        }
        let mut layers = Vec::new();
        for (layer_idx, layer) in shard.layers.iter_mut().enumerate() {
            let part = Part { layer_idx, rank, n_ranks };
            let mut split = LayerSplit::default();
            part.divide_mixer(&mut layer.mixer, self.hidden_size, blocks.mixer, &mut split)?;
            match &mut layer.feed_forward {
                FeedForward::None => {}
                FeedForward::Dense { width } => {
                    split.feed_forward = part.divide(width, blocks.feed_forward, "hidden columns")?;
                }
                FeedForward::Experts { width, shared, .. } => {
                    split.feed_forward = part.divide(width, blocks.experts, "columns of an expert")?;
                    if let Some(shared) = shared {
                        let what = "columns of the shared expert";
                        split.shared = part.divide(&mut shared.width, blocks.feed_forward, what)?;
                    }
                }
            }
            layers.push(split);
        }
        let rows = share_in_panels(self.vocabulary_size, n_ranks);
        shard.split = Some(Split { rank, vocabularies: rows, layers });
        Ok(shard)
    }

    /// Number of rows of the embedding table and of the head.
    pub fn n_table_rows(&self) -> usize {
        self.split.as_ref().map_or(self.vocabulary_size, |split| split.vocabulary().len())
    }
}

impl Default for LayerSplit {
    fn default() -> Self {
        let (attention, states) = (HeadSplit::default(), HeadSplit::default());
        Self { attention, states, state_norm_width: None, feed_forward: 0..0, shared: 0..0 }
    }
}

/// Number of rows of a panel of packed weights.
const PANEL: usize = 16;

/// Shares of rows, in whole panels if there are enough.
fn share_in_panels(n_rows: usize, n_ranks: usize) -> Vec<Range<usize>> {
    let panel = if n_rows >= PANEL * n_ranks { PANEL } else { 1 };
    (0..n_ranks).map(|rank| share(n_rows, panel, rank, n_ranks)).collect()
}

/// The share of one rank of `n` elements, in whole units of `unit`; the last unit may be incomplete.
fn share(n: usize, unit: usize, rank: usize, n_ranks: usize) -> Range<usize> {
    let n_units = n.div_ceil(unit);
    let bound = |rank: usize| (rank * n_units / n_ranks * unit).min(n);
    bound(rank)..bound(rank + 1)
}

/// Smallest number of elements of `width` weights each that fills whole blocks.
fn unit(block: usize, width: usize) -> usize {
    let (mut a, mut b) = (block, width.max(1));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    block / a
}

/// A rank's part of one layer.
struct Part {
    layer_idx: usize,
    rank: usize,
    n_ranks: usize,
}

impl Part {
    fn too_few(&self, n: usize, what: &'static str, block: usize) -> ShardError {
        let &Self { layer_idx, n_ranks, .. } = self;
        ShardError::TooFew { layer_idx, what, n, n_ranks, block }
    }

    fn share(&self, n: usize, unit: usize) -> Option<Range<usize>> {
        (n.div_ceil(unit) >= self.n_ranks).then(|| share(n, unit, self.rank, self.n_ranks))
    }

    /// Divides this number of columns.
    fn divide(&self, n: &mut usize, block: usize, what: &'static str) -> Result<Range<usize>, ShardError> {
        // Kernels read columns in panels; where there are enough, none is cut.
        let wide = block.max(PANEL);
        let is_wide = wide.is_multiple_of(block) && *n >= 4 * wide * self.n_ranks;
        let columns = self.share(*n, if is_wide { wide } else { block });
        let columns = columns.ok_or_else(|| self.too_few(*n, what, block))?;
        *n = columns.len();
        Ok(columns)
    }

    /// Divides heads in groups of equally many, whose output has `width` columns each: whole groups, or
    /// the heads of one group.
    fn heads(
        &self,
        [n_heads, n_groups]: [usize; 2],
        width: usize,
        block: usize,
        what: &'static str,
    ) -> Result<HeadSplit, ShardError> {
        let of_group = n_heads / n_groups;
        if n_groups >= self.n_ranks {
            let groups = self.share(n_groups, unit(block, of_group * width));
            let groups = groups.ok_or_else(|| self.too_few(n_groups, what, block))?;
            let heads = groups.start * of_group..groups.end * of_group;
            return Ok(HeadSplit { n_heads, n_groups, heads, groups, is_first: true });
        }
        let group = self.rank * n_groups / self.n_ranks;
        let mut members = (0..self.n_ranks).filter(|rank| rank * n_groups / self.n_ranks == group);
        let first = members.next().unwrap_or(self.rank);
        let n_members = 1 + members.count();
        let unit = unit(block, width);
        // A group must begin with a block, as its parts must.
        if of_group.div_ceil(unit) < n_members || (group > 0 && !of_group.is_multiple_of(unit)) {
            return Err(self.too_few(n_heads, what, block));
        }
        let of_rank = share(of_group, unit, self.rank - first, n_members);
        let heads = group * of_group + of_rank.start..group * of_group + of_rank.end;
        Ok(HeadSplit { n_heads, n_groups, heads, groups: group..group + 1, is_first: self.rank == first })
    }

    fn divide_mixer(
        &self,
        mixer: &mut Mixer,
        hidden: usize,
        block: usize,
        split: &mut LayerSplit,
    ) -> Result<(), ShardError> {
        match mixer {
            Mixer::None => {}
            Mixer::Attention(attention) => split.attention = self.attention(attention, block)?,
            Mixer::Latent(LatentConfig { n_heads, value_dim, .. }) => {
                let heads = self.share(*n_heads, unit(block, *value_dim));
                let heads = heads.ok_or_else(|| self.too_few(*n_heads, "heads", block))?;
                split.attention =
                    HeadSplit { n_heads: *n_heads, heads: heads.clone(), ..HeadSplit::default() };
                *n_heads = heads.len();
            }
            Mixer::ShortConv { n_channels, .. } => {
                let mut n = n_channels.unwrap_or(hidden);
                let heads = self.divide(&mut n, block, "channels")?;
                split.states = HeadSplit { n_heads: hidden, heads, ..HeadSplit::default() };
                *n_channels = Some(n);
            }
            Mixer::GatedDelta(shape) => split.states = self.delta_net(shape, block)?,
            Mixer::StateSpace(shape) => self.state_space(shape, block, split)?,
            Mixer::Hybrid(HybridConfig { attention, state_space, .. }) => {
                split.attention = self.attention(attention, block)?;
                self.state_space(state_space, block, split)?;
            }
        }
        Ok(())
    }

    fn attention(&self, attention: &mut AttentionConfig, block: usize) -> Result<HeadSplit, ShardError> {
        let AttentionConfig { n_heads, n_kv_heads, head_dim, .. } = *attention;
        let split = self.heads([n_heads, n_kv_heads], head_dim, block, "heads")?;
        (attention.n_heads, attention.n_kv_heads) = (split.heads.len(), split.groups.len());
        Ok(split)
    }

    /// Divides the heads of values like those of keys.
    fn delta_net(&self, shape: &mut DeltaShape, block: usize) -> Result<HeadSplit, ShardError> {
        let DeltaShape { n_key_heads, n_value_heads, value_dim, is_tiled, .. } = *shape;
        let of_key = n_value_heads / n_key_heads;
        let adjacent = if is_tiled { value_dim } else { of_key * value_dim };
        let groups = self.share(n_key_heads, unit(block, adjacent));
        // Tiles begin with a block, if their parts do.
        let fits = !is_tiled || (n_key_heads * value_dim).is_multiple_of(block);
        let groups = groups.filter(|_| fits);
        let groups = groups.ok_or_else(|| self.too_few(n_key_heads, "heads of keys", block))?;
        (shape.n_key_heads, shape.n_value_heads) = (groups.len(), groups.len() * of_key);
        let heads = groups.start * of_key..groups.end * of_key;
        Ok(HeadSplit { n_heads: n_value_heads, n_groups: n_key_heads, heads, groups, is_first: true })
    }

    fn state_space(
        &self,
        shape: &mut StateSpaceShape,
        block: usize,
        split: &mut LayerSplit,
    ) -> Result<(), ShardError> {
        let StateSpaceShape { n_heads, n_groups, head_dim, n_norm_groups, .. } = *shape;
        let of_rank = |rank| Self { rank, ..*self }.heads([n_heads, n_groups], head_dim, block, "heads");
        let all = (0..self.n_ranks).map(of_rank).collect::<Result<Vec<_>, _>>()?;
        if let Some(width) = (n_heads * head_dim).checked_div(n_norm_groups) {
            let are_whole = all.iter().all(|split| (split.heads.start * head_dim).is_multiple_of(width));
            split.state_norm_width = (!are_whole).then_some(width);
            let own = all[self.rank].heads.len() * head_dim;
            // A vector that is normed together with other devices' parts is normed behind the mixer.
            shape.n_norm_groups = if are_whole { own / width } else { 0 };
        }
        split.states = all[self.rank].clone();
        (shape.n_heads, shape.n_groups) = (split.states.heads.len(), split.states.groups.len());
        Ok(())
    }
}

impl AttentionConfig {
    /// Whether a norm reads all heads of the layer together.
    pub fn norms_all_heads(&self) -> bool {
        self.qk_norm == QkNorm::WholeWidth
    }
}
