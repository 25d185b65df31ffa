//! The operations of a decoder. Does not know the order in which a model needs them.

use std::ops::Range;

use super::{
    AttentionQueries, Capability, DeviceMemory, GatedMlp, IndexQueries, MlpScratch, Norm, RelativeScores,
    Router, Scratch, SplitColumns,
};
use crate::shapes::{Activation, AttentionShape, Columns, HeadColumns, RopeStyle, RowGroups};

/// The operations that a decoder needs of a device. Rows of a buffer are tokens unless said otherwise. A
/// Llama needs those without a default body; a device without one of the others does not have the
/// [`Capability`] of that name.
pub trait DeviceOps: DeviceMemory {
    /// `out[i] = table[token_i] * scale` for every token of the batch.
    fn embed(&mut self, table: &Self::Matrix, batch: &Self::Batch, scale: f32, out: &mut Self::Buffer);

    /// Overwrites adjacent rows of `x` from `first_row` on: features in place of embeddings.
    fn overwrite_rows(&mut self, _x: &mut Self::Buffer, _first_row: usize, _rows: &[f32]) {
        Capability::Features.is_missing()
    }

    /// Adds to adjacent rows of `x` from `first_row` on.
    fn add_rows(&mut self, _x: &mut Self::Buffer, _first_row: usize, _rows: &[f32]) {
        Capability::Features.is_missing()
    }

    /// `out = x · wᵀ + bias`: `[n, in] × [out, in] → [n, out]`. Each output element is summed along `in` in
    /// one fixed order.
    fn matmul(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// A norm of every row: root mean square (arXiv:1910.07467), `out = x / sqrt(mean(x²) + eps) * gain`, or
    /// with a bias a layer norm (arXiv:1607.06450), `out = (x - mean(x)) / sqrt(variance(x) + eps) * gain +
    /// bias`.
    fn norm_rows(&mut self, x: &Self::Buffer, norm: Norm<'_, Self>, out: &mut Self::Buffer);

    /// A root mean square norm in place over groups of columns, one gain for all: the heads of queries or
    /// keys, or their whole width. With a bias a layer norm, whose gain and bias have an element for each
    /// column of all groups.
    fn norm_columns(&mut self, _x: &mut Self::Buffer, _columns: Columns, _norm: Norm<'_, Self>) {
        Capability::ColumnNorm.is_missing()
    }

    /// Adds the products of adapters (LoRA, arXiv:2106.09685) to the output of a linear layer: for the rows
    /// of every group that `of` has matrices for, and for each of their parts, `out += scale * (x · aᵀ) · bᵀ`
    /// in the part's columns. A row's sums have one order, independent of the other rows, and rows in no
    /// group are not touched.
    fn add_low_rank<'a>(
        &mut self,
        _x: &Self::Buffer,
        _groups: &'a RowGroups,
        _of: &dyn Fn(usize) -> Option<&'a Self::LowRank>,
        _out: &mut Self::Buffer,
    ) {
        Capability::Adapters.is_missing()
    }

    /// Rotary embedding in place over heads (arXiv:2104.09864), by the angles that table number `table_idx`
    /// has for the position of each token, or for each pair by its section where the table has
    /// [sections](crate::config::RopeTable::sections) and the batch has positions in sections. Only the
    /// first `2 * table width` elements of each head are rotated.
    fn rope(
        &mut self,
        x: &mut Self::Buffer,
        batch: &Self::Batch,
        tables: &Self::RopeTables,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    );

    /// Writes every token's keys and values into the slots of its positions. `qkv`
    /// has the columns queries, keys, values, and others after them.
    fn store_kv(
        &mut self,
        cache: &mut Self::KvCache,
        layer_idx: usize,
        batch: &Self::Batch,
        qkv: &Self::Buffer,
        shape: &AttentionShape,
    );

    /// Attention of every token over its positions by the shape, read through the block table. `out` is `[n,
    /// n_heads * value_dim]`. Keys and values of the batch's own tokens are in the cache already. A sink is a
    /// further score that has no value. Blocks are read in order of position, and the splits over threads
    /// depend on the position only.
    fn attention(
        &mut self,
        cache: &Self::KvCache,
        layer_idx: usize,
        batch: &Self::Batch,
        queries: AttentionQueries<'_, Self>,
        out: &mut Self::Buffer,
    );

    /// Chooses for every token the positions up to its own that have the highest scores of an indexer, as
    /// many as `chosen` has columns (ties: the smaller position), and writes them in increasing order; a
    /// token with no more positions than that gets
    /// [`ALL_POSITIONS`](throng_kernels::attention::ALL_POSITIONS) in the first column. Keys of the batch's
    /// own tokens are in the cache already, in the place `cache_idx`.
    fn choose_positions(
        &mut self,
        _cache: &Self::KvCache,
        _cache_idx: usize,
        _batch: &Self::Batch,
        _queries: IndexQueries<'_, Self>,
        _chosen: &mut Self::Buffer,
    ) {
        Capability::ChosenPositions.is_missing()
    }

    /// [`Self::attention`] of one KV head whose values are in its keys, over the chosen positions.
    fn attention_at(
        &mut self,
        _cache: &Self::KvCache,
        _layer_idx: usize,
        _batch: &Self::Batch,
        _queries: AttentionQueries<'_, Self>,
        _chosen: &Self::Buffer,
        _out: &mut Self::Buffer,
    ) {
        Capability::ChosenPositions.is_missing()
    }

    /// Attention of every token over all tokens of its sequence, whose rows are all in the batch, with
    /// [scores](RelativeScores) by the distance of two tokens in addition. There are as many heads of keys
    /// and values as of queries. Nothing is cached.
    fn relative_attention(
        &mut self,
        _batch: &Self::Batch,
        _queries: AttentionQueries<'_, Self>,
        _relative: RelativeScores<'_, Self>,
        _out: &mut Self::Buffer,
    ) {
        Capability::RelativeAttention.is_missing()
    }

    /// The hidden activations of a gated feed-forward network: `out = activation(g) * u`, where `g` and `u`
    /// are the first and the second half of the columns of `gate_up`: `[n, 2w] → [n, w]`. Of a network
    /// without gates `out = activation(x)`: `[n, w] → [n, w]`.
    fn glu(&mut self, gate_up: &Self::Buffer, activation: Activation, out: &mut Self::Buffer);

    /// `x += y * multiplier`.
    fn add(&mut self, x: &mut Self::Buffer, y: &Self::Buffer, multiplier: f32);

    /// Copies `width` columns of each of `n` groups from `x` to `out`.
    fn copy_columns(
        &mut self,
        _x: &Self::Buffer,
        _from: HeadColumns,
        _out: &mut Self::Buffer,
        _to: HeadColumns,
        _n: usize,
        _width: usize,
    ) {
        Capability::ColumnCopy.is_missing()
    }

    /// A product of each head with a matrix of its own: the columns of head `h` in `out` are those of head
    /// `h` in `x` times `w[h]ᵀ`. The order of sums is that of [`Self::matmul`].
    fn matmul_heads(
        &mut self,
        _x: &Self::Buffer,
        _from: HeadColumns,
        _w: &[Self::Matrix],
        _out: &mut Self::Buffer,
        _to: HeadColumns,
    ) {
        Capability::LatentAttention.is_missing()
    }

    /// `x[i] *= sigmoid(gate[i])`, a gate of one column.
    fn gate_rows(&mut self, _x: &mut Self::Buffer, _gate: &Self::Buffer) {
        Capability::RowGate.is_missing()
    }

    /// `x[i] *= sigmoid(gates[i])`, whose gates begin at this column and are as many as the columns of `x`.
    fn gate_columns(&mut self, _x: &mut Self::Buffer, _gates: &Self::Buffer, _first_col: usize) {
        Capability::ColumnGate.is_missing()
    }

    /// A routed mixture of experts: for every row the experts that the [router](Router) chooses, each a gated
    /// feed-forward network, summed with their weights in increasing index.
    fn mixture_of_experts(
        &mut self,
        _x: &Self::Buffer,
        _router: Router<'_, Self>,
        _experts: &Self::Experts,
        _activation: Activation,
        _out: &mut Self::Buffer,
    ) {
        Capability::Experts.is_missing()
    }

    /// `out[i] = x[token]` for the tokens number `wanted` among those of the batch whose logits are wanted.
    fn gather_logit_rows(
        &mut self,
        x: &Self::Buffer,
        batch: &Self::Batch,
        wanted: Range<usize>,
        out: &mut Self::Buffer,
    );

    /// `x = x * scale`, then, with a cap, `cap * tanh(x / cap)`.
    fn scale_and_cap(&mut self, _x: &mut Self::Buffer, _scale: f32, _softcap: Option<f32>) {
        Capability::ScaleAndCap.is_missing()
    }

    /// Multiplies columns of `x`.
    fn scale_columns(&mut self, _x: &mut Self::Buffer, _columns: Columns, _scale: f32) {
        Capability::ScaleAndCap.is_missing()
    }

    /// [`Self::embed`] with only the rows `part` of a table: zeros for tokens whose rows are on other
    /// devices.
    fn embed_part(
        &mut self,
        _table: &Self::Matrix,
        _batch: &Self::Batch,
        _part: Range<usize>,
        _scale: f32,
        _out: &mut Self::Buffer,
    ) {
        Capability::Parts.is_missing()
    }

    /// The columns of all devices side by side, in order of rank, on device 0; on others `out` is
    /// unspecified. `part` has those of this device, `widths[i]` of them are on device `i`.
    fn gather_columns(&mut self, _part: &Self::Buffer, _widths: &[usize], _out: &mut Self::Buffer) {
        Capability::Parts.is_missing()
    }

    /// Root mean square norms in place of columns of which other devices have a part: the squares of each
    /// sum are added over devices first.
    fn norm_split_columns(&mut self, _x: &mut Self::Buffer, _parts: &[SplitColumns<'_, Self>], _eps: f32) {
        Capability::Parts.is_missing()
    }

    /// Sums a product with a [row-parallel](super::MatrixRole::RowParallel) matrix over the devices that have
    /// a part of the matrix. Every such product is passed to this function once before it is used; on one
    /// device it is complete already.
    fn all_reduce(&mut self, _partial: &mut Self::Buffer) {}

    // Fusions.

    /// [`Self::norm_rows`], then [`Self::matmul`].
    fn norm_matmul(
        &mut self,
        x: &Self::Buffer,
        norm: Norm<'_, Self>,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        scratch: &mut Scratch<Self>,
        out: &mut Self::Buffer,
    ) {
        let n_rows = self.n_rows(x);
        self.set_rows(&mut scratch.normed, n_rows);
        self.norm_rows(x, norm, &mut scratch.normed);
        self.matmul(&scratch.normed, w, bias, out);
    }

    /// Adds the product with a row-parallel matrix, summed over devices: `out += x · wᵀ + bias`.
    fn matmul_add(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        scratch: &mut Scratch<Self>,
        out: &mut Self::Buffer,
    ) {
        let n_rows = self.n_rows(x);
        self.set_rows(&mut scratch.partial, n_rows);
        self.matmul(x, w, bias, &mut scratch.partial);
        self.all_reduce(&mut scratch.partial);
        self.add(out, &scratch.partial, 1.0);
    }

    /// A gated feed-forward network, of normed rows if there is a norm, not yet summed over devices: `out =
    /// hidden · downᵀ`, where `hidden` are the [hidden activations](Self::glu) of `x · gate_upᵀ`, biases
    /// included: `[n, in] × [2w, in] → [n, w]`, `[n, w] × [out, w] → [n, out]`.
    fn gated_mlp(
        &mut self,
        x: &Self::Buffer,
        norm: Option<Norm<'_, Self>>,
        mlp: &GatedMlp<Self>,
        activation: Activation,
        scratch: &mut Scratch<Self>,
        out: &mut Self::Buffer,
    ) {
        let Scratch { normed, mlps, .. } = scratch;
        unfused_mlp(self, x, norm, mlp, activation, normed, mlps, out);
    }

    /// Adds the network's result to its own input, summed over devices: `x += mlp(norm(x))`.
    fn gated_mlp_add(
        &mut self,
        norm: Option<Norm<'_, Self>>,
        mlp: &GatedMlp<Self>,
        activation: Activation,
        scratch: &mut Scratch<Self>,
        x: &mut Self::Buffer,
    ) {
        let n_rows = self.n_rows(x);
        let Scratch { normed, mlps, partial } = scratch;
        self.set_rows(partial, n_rows);
        unfused_mlp(self, x, norm, mlp, activation, normed, mlps, partial);
        self.all_reduce(partial);
        self.add(x, partial, 1.0);
    }
}

/// A gated feed-forward network of single operations.
fn unfused_mlp<B: DeviceOps>(
    backend: &mut B,
    x: &B::Buffer,
    norm: Option<Norm<'_, B>>,
    mlp: &GatedMlp<B>,
    activation: Activation,
    normed: &mut B::Buffer,
    scratches: &mut [MlpScratch<B>],
    out: &mut B::Buffer,
) {
    let n_rows = backend.n_rows(x);
    let scratch = scratches.iter_mut().find(|scratch| scratch.width == mlp.width);
    let MlpScratch { gate_up, hidden, .. } = scratch.expect("there is a scratch of the network's width");
    let x = match norm {
        None => x,
        Some(norm) => {
            backend.set_rows(normed, n_rows);
            backend.norm_rows(x, norm, normed);
            normed
        }
    };
    backend.set_rows(gate_up, n_rows);
    backend.set_rows(hidden, n_rows);
    backend.matmul(x, &mlp.gate_up.weight, mlp.gate_up.bias.as_ref(), gate_up);
    backend.glu(gate_up, activation, hidden);
    backend.matmul(hidden, &mlp.down.weight, mlp.down.bias.as_ref(), out);
}
