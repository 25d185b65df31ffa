//! Operands of operations: weights with their biases, norms, and the buffers between unfused operations. Does
//! not know who computes.

use super::{AttentionShape, BackendError, Columns, DeviceMemory, Linear};
use crate::config::{RelativePositions, Routing};

/// A norm of rows: a root mean square norm or, with a bias, a layer norm.
#[derive(Debug)]
pub struct Norm<'a, B: DeviceMemory> {
    /// Gains, one for each column.
    pub gain: &'a B::Vector,
    /// Bias of a layer norm, one element a column: rows are centred first, and this is added in the end.
    pub bias: Option<&'a B::Vector>,
    /// Epsilon that is added to the mean square, or to the variance.
    pub eps: f32,
}

impl<'a, B: DeviceMemory> Norm<'a, B> {
    /// A root mean square norm.
    pub fn rms(gain: &'a B::Vector, eps: f32) -> Self {
        Self { gain, bias: None, eps }
    }
}

/// Columns that are normed together with columns of other devices.
#[derive(Debug)]
pub struct SplitColumns<'a, B: DeviceMemory> {
    /// The columns of this device, as one group.
    pub columns: Columns,
    /// Index of the sum of squares that they belong to.
    pub sum_idx: usize,
    /// Number of sums, the same on all devices.
    pub n_sums: usize,
    /// Number of columns of all devices that belong to it.
    pub n_columns: usize,
    /// Whether this device adds the squares: of the devices with the same columns one does.
    pub is_counted: bool,
    /// Gains, one element a column.
    pub gain: &'a B::Vector,
    /// Index of the gain's element for the first column.
    pub first_gain: usize,
}

impl<B: DeviceMemory> Clone for Norm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for Norm<'_, B> {}

/// Choice of each row's experts, among all or among those of the best [groups](crate::config::RoutingGroups):
/// the `routing.n_used` experts with the highest sum of score and bias (ties: the smaller index). Their
/// weights are their scores without the bias, scaled to the sum 1 if `routing.normalize`, times
/// `routing.scale`.
#[derive(Debug)]
pub struct Router<'a, B: DeviceMemory> {
    /// `[rows, experts]`.
    pub logits: &'a B::Buffer,
    /// Numbers added to scores where experts are chosen; one element an expert.
    pub bias: Option<&'a B::Vector>,
    /// A factor of each expert's weight.
    pub scales: Option<&'a B::Vector>,
    /// Scores of the experts, from router logits.
    pub routing: &'a Routing,
}

impl<B: DeviceMemory> Clone for Router<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for Router<'_, B> {}

/// The queries of an attention call: the first columns of a projection to queries, keys and values.
#[derive(Debug)]
pub struct AttentionQueries<'a, B: DeviceMemory> {
    /// Rows of queries, keys and values, one for each token.
    pub qkv: &'a B::Buffer,
    /// The heads and the positions that they attend to.
    pub shape: &'a AttentionShape,
    /// A further score of each head that has no value (gpt-oss, arXiv:2508.10925).
    pub sinks: Option<&'a B::Vector>,
}

impl<B: DeviceMemory> Clone for AttentionQueries<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for AttentionQueries<'_, B> {}

/// The queries of an indexer. The score of a query at `i` and a key at `t` is the sum over heads of
/// `weights[i][head] * max(q · k, 0)`.
#[derive(Debug)]
pub struct IndexQueries<'a, B: DeviceMemory> {
    /// Queries of all heads in the first columns.
    pub qkv: &'a B::Buffer,
    /// `[rows, n_heads]`.
    pub weights: &'a B::Buffer,
    /// The heads, and the keys that all share.
    pub shape: &'a AttentionShape,
}

impl<B: DeviceMemory> Clone for IndexQueries<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for IndexQueries<'_, B> {}

/// Scores by the distance of two tokens. For each head, the score of a query at `i` and a key at `j`, whose
/// distance is in bucket `b`, is `(q · k + of_queries[i][b] + of_keys[j][b]) * scale + bias[b]`.
#[derive(Debug)]
pub struct RelativeScores<'a, B: DeviceMemory> {
    /// Buckets of distances.
    pub positions: &'a RelativePositions,
    /// `[n_heads, n_buckets]`.
    pub bias: Option<&'a B::Vector>,
    /// `[rows, n_heads * n_buckets]`.
    pub of_queries: Option<&'a B::Buffer>,
    /// `[rows, n_heads * n_buckets]`.
    pub of_keys: Option<&'a B::Buffer>,
}

impl<B: DeviceMemory> Clone for RelativeScores<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for RelativeScores<'_, B> {}

/// A gated feed-forward network (SwiGLU, GeGLU; arXiv:2002.05202), or one without gates.
pub struct GatedMlp<B: DeviceMemory> {
    /// Number of rows of gate, and of up.
    pub width: usize,
    /// Gate stacked on up, `[2 * width, in]`: two parts, or one. Without gates `[width, in]`.
    pub gate_up: Linear<B>,
    /// `[out, width]`.
    pub down: Linear<B>,
}

/// The buffers between the operations that a fusion consists of. A backend that overrides the fusions never
/// sets their rows.
pub struct Scratch<B: DeviceMemory> {
    /// Normed rows, `[tokens, hidden]`.
    pub normed: B::Buffer,
    /// A product before it is summed over devices and added to the residual stream, `[tokens, hidden]`.
    pub partial: B::Buffer,
    /// Buffers, one for each width of a feed-forward network.
    pub mlps: Vec<MlpScratch<B>>,
}

/// The buffers within a feed-forward network of one width.
pub struct MlpScratch<B: DeviceMemory> {
    /// Number of columns of `hidden`.
    pub width: usize,
    /// `[tokens, 2 * width]`, without gates `[tokens, width]`.
    pub gate_up: B::Buffer,
    /// `[tokens, width]`.
    pub hidden: B::Buffer,
}

impl<B: DeviceMemory> Scratch<B> {
    /// Buffers for `max_rows` rows of `hidden` columns, and for networks of these widths, all gated or none.
    ///
    /// # Errors
    /// When the memory of the device does not suffice.
    pub fn new(
        backend: &B,
        max_rows: usize,
        hidden: usize,
        widths: impl IntoIterator<Item = usize>,
        are_gated: bool,
    ) -> Result<Self, BackendError> {
        let mut mlps: Vec<MlpScratch<B>> = Vec::new();
        for width in widths {
            if mlps.iter().all(|mlp| mlp.width != width) {
                let n_inputs = if are_gated { 2 * width } else { width };
                let (gate_up, hidden) =
                    (backend.buffer(max_rows, n_inputs)?, backend.buffer(max_rows, width)?);
                mlps.push(MlpScratch { width, gate_up, hidden });
            }
        }
        let (normed, partial) = (backend.buffer(max_rows, hidden)?, backend.buffer(max_rows, hidden)?);
        Ok(Self { normed, partial, mlps })
    }
}
