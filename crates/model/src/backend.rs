//! Door 1: the operations of one device, over its own buffers. Everything above it (the forward pass) is
//! written once; everything below knows shapes and refuses to know architectures, requests and files.
//!
//! Host memory crosses the door in three places only: weights and batches going in, logits coming out.
//! Operations report no errors: a device works behind the caller's back, so its faults are told by the next
//! [`Backend::download`]. Shapes that do not fit are a bug of the caller and panic.
//!
//! Invariance is part of the contract: an operation's result for one row of a buffer (one token) must be the same
//! bits whatever other rows there are, and on however many threads it runs.

use std::ops::Range;

use throng_kernels::quant::PackedMatrix;
pub use throng_kernels::reference::AttentionShape;

use crate::batch_input::BatchInput;
use crate::config::{Activation, RopeStyle, Routing};
use crate::kv_cache::KvLayout;
use crate::weights::TensorView;

/// The operations that a decoder needs of a device.
pub trait Backend: Send + Sized + 'static {
    /// Activations: `[rows, cols]` of f32, row-major, with room for a number of rows fixed at creation.
    type Buffer: Send;
    /// A weight matrix `[out, in]`, possibly stacked of parts in different formats, in the device's own layout.
    type Matrix: Send + Sync;
    /// A row of f32 weights (a norm's gain, a projection's bias).
    type Vector: Send + Sync;
    /// Keys and values of all layers, in blocks of 16 tokens.
    type KvCache: Send;
    /// A [`BatchInput`] on the device.
    type Batch: Send;

    // What is made once.

    /// A buffer of zero rows with room for `max_rows` of `cols` elements.
    ///
    /// # Errors
    /// When the device has no room for it.
    fn buffer(&self, max_rows: usize, cols: usize) -> Result<Self::Buffer, BackendError>;

    /// A matrix made of `parts` stacked on top of each other: all `[rows_i, cols]`, each keeping its own format,
    /// so that Q, K and V are one projection. The bytes are copied (and repacked as the device likes).
    ///
    /// # Errors
    /// When the device has no room, or cannot hold the format or the shape.
    fn matrix(&self, parts: &[TensorView<'_>]) -> Result<Self::Matrix, BackendError>;

    /// Whether [`Self::packed`] gives a matrix in a form that a file can keep.
    const KEEPS_PACKED: bool = false;

    /// The parts of a matrix in this device's own layout, where that lies in host memory.
    fn packed<'m>(&self, _matrix: &'m Self::Matrix) -> &'m [PackedMatrix] {
        &[]
    }

    /// A matrix of parts whose data are the bytes that [`Self::packed`] gave. They are copied.
    ///
    /// # Errors
    /// When the device has no room, or has no such layout.
    fn matrix_of_packed(&self, _parts: &[TensorView<'_>]) -> Result<Self::Matrix, BackendError> {
        Err(BackendError::Unsupported("packed weights".to_owned()))
    }

    /// Asks for finer activations where these rows of the matrix are multiplied, of a backend that rounds them: the
    /// projection to keys, whose errors the softmax over positions magnifies and every later query meets again.
    fn refine(&self, _matrix: &mut Self::Matrix, _rows: Range<usize>) {}

    /// A vector.
    ///
    /// # Errors
    /// When the device has no room for it.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// An empty cache.
    ///
    /// # Errors
    /// When the device has no room for it or cannot hold the layout.
    fn kv_cache(&self, layout: &KvLayout) -> Result<Self::KvCache, BackendError>;

    /// Room for batches.
    ///
    /// # Errors
    /// When the device has no room for it.
    fn batch(&self) -> Result<Self::Batch, BackendError>;

    // What the host does meanwhile.

    /// Host threads that work for this backend.
    fn n_host_threads(&self) -> usize {
        1
    }

    /// Calls `share` once on each of those threads, with its index, and waits for all: for work on what came out of
    /// [`Self::download`].
    fn run_on_host(&self, share: &(dyn Fn(usize) + Sync)) {
        share(0);
    }

    // What crosses the door every step.

    /// Copies a step's input to the device.
    fn upload(&mut self, input: &BatchInput, batch: &mut Self::Batch);

    /// Waits until everything before it has finished and gives all rows of `x` in host memory, `[rows, cols]`. The
    /// caller may overwrite what it gets; the buffer's contents are unspecified afterwards.
    ///
    /// # Errors
    /// When this or any earlier operation failed on the device.
    fn download<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a mut [f32], BackendError>;

    // What works on buffers. Rows are tokens unless said otherwise.

    /// Sets how many rows of the buffer are in use; their contents are unspecified afterwards.
    fn set_rows(&mut self, x: &mut Self::Buffer, n_rows: usize);

    /// `out[i] = table[token_i] * scale` for every token of the batch.
    fn embed(&mut self, table: &Self::Matrix, batch: &Self::Batch, scale: f32, out: &mut Self::Buffer);

    /// `out = x · wᵀ + bias`: `[n, in] × [out, in] → [n, out]`. Each output element is summed along `in` in one
    /// fixed order.
    fn matmul(
        &mut self,
        x: Operand<'_, Self>,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// `out += x · wᵀ + bias`.
    fn matmul_add(
        &mut self,
        x: Operand<'_, Self>,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// A gated linear unit (arXiv:2002.05202): `out = hidden · downᵀ` of `hidden = activation(g) * u`, where `g` and `u` are
    /// the first and the second half of the columns of `x · gate_upᵀ`, biases included:
    /// `[n, in] × [2w, in] → [n, w]`, `[n, w] × [out, w] → [n, out]`.
    fn gated_unit(
        &mut self,
        x: Operand<'_, Self>,
        unit: &GatedUnit<Self>,
        activation: Activation,
        out: &mut Self::Buffer,
    );

    /// Adds to `x` what such a unit makes of it, normed first where there is a norm (see [`Operand`]).
    fn gated_unit_add(
        &mut self,
        norm: Option<(&Self::Vector, f32)>,
        unit: &GatedUnit<Self>,
        activation: Activation,
        x: &mut Self::Buffer,
    );

    /// Root mean square norm of every row (arXiv:1910.07467): `out = x / sqrt(mean(x²) + eps) * gain`.
    fn rms_norm(&mut self, x: &Self::Buffer, gain: &Self::Vector, eps: f32, out: &mut Self::Buffer);

    /// The same norm in place over groups of columns: a query's or key's heads, or its whole width.
    fn norm_columns(&mut self, x: &mut Self::Buffer, columns: Columns, gain: &Self::Vector, eps: f32);

    /// Rotary embedding in place over heads (arXiv:2104.09864), with the cosines and sines of the batch's table
    /// number `table_idx`. Only the first `2 * table width` elements of each head turn.
    fn rope(
        &mut self,
        x: &mut Self::Buffer,
        batch: &Self::Batch,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    );

    /// Writes every token's keys and values into the slots of its positions. `qkv` is
    /// `[n, (n_heads + 2 n_kv_heads) * head_dim]`: queries, keys, values.
    fn store_kv(
        &mut self,
        cache: &mut Self::KvCache,
        layer_idx: usize,
        batch: &Self::Batch,
        qkv: &Self::Buffer,
        shape: &AttentionShape,
    );

    /// Causal attention of every token over the positions of its sequence up to its own (or the last
    /// `window` of them), read through the block table. `out` is `[n, n_heads * head_dim]`. Keys and values
    /// of the batch's own tokens are in the cache already. Blocks are walked in order of position, and where the
    /// walk is split depends on the position only.
    fn attention(
        &mut self,
        cache: &Self::KvCache,
        layer_idx: usize,
        batch: &Self::Batch,
        qkv: &Self::Buffer,
        shape: &AttentionShape,
        out: &mut Self::Buffer,
    );

    /// `x += y * multiplier`.
    fn add(&mut self, x: &mut Self::Buffer, y: &Self::Buffer, multiplier: f32);

    /// `x[i] *= sigmoid(gate[i])`, a gate of one column.
    fn gate_rows(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer);

    /// A routed mixture of experts: for every row the `routing.n_used` experts with the highest logits (ties: the
    /// smaller index), each a gated linear unit, summed with their weights. Rows are sorted by expert, so that an
    /// expert's weights are read once; a row's sum runs over its experts in increasing index.
    fn experts(
        &mut self,
        x: &Self::Buffer,
        router_logits: &Self::Buffer,
        experts: &[Expert<Self::Matrix>],
        routing: &Routing,
        activation: Activation,
        out: &mut Self::Buffer,
    );

    /// `out[i] = x[token]` for the tokens number `wanted` among those of the batch whose logits are wanted.
    fn gather_logit_rows(
        &mut self,
        x: &Self::Buffer,
        batch: &Self::Batch,
        wanted: Range<usize>,
        out: &mut Self::Buffer,
    );

    /// `x = x * scale`, then, with a cap, `cap * tanh(x / cap)`.
    fn finish_logits(&mut self, x: &mut Self::Buffer, scale: f32, softcap: Option<f32>);
}

/// The rows that a product multiplies.
#[derive(Debug)]
pub struct Operand<'a, B: Backend> {
    /// The rows.
    pub x: &'a B::Buffer,
    /// Their norm and its eps, where they are normed first: see [`Backend::rms_norm`].
    pub norm: Option<(&'a B::Vector, f32)>,
}

impl<'a, B: Backend> Operand<'a, B> {
    /// The rows as they are.
    pub fn of(x: &'a B::Buffer) -> Self {
        Self { x, norm: None }
    }
}

impl<B: Backend> Clone for Operand<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Operand<'_, B> {}

/// A matrix and what is added to every row of its products.
pub struct Linear<B: Backend> {
    /// `[out, in]`.
    pub weight: B::Matrix,
    /// `[out]`.
    pub bias: Option<B::Vector>,
}

/// Gate on top of up, then down.
pub struct GatedUnit<B: Backend> {
    /// `[2 * width, in]`: two parts, or one.
    pub gate_up: Linear<B>,
    /// `[out, width]`.
    pub down: Linear<B>,
}

/// The matrices of one expert.
#[derive(Debug)]
pub struct Expert<M> {
    /// Gate on top of up, two parts: `[2 * width, hidden]`.
    pub gate_up: M,
    /// `[hidden, width]`.
    pub down: M,
}

/// Groups of columns side by side: `n_groups` of `width` from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// The first column.
    pub first: usize,
    /// How many groups.
    pub n_groups: usize,
    /// Columns of one group.
    pub width: usize,
}

impl Columns {
    /// The queries among queries, keys and values side by side.
    pub fn of_queries(shape: &AttentionShape) -> Self {
        Self { first: 0, n_groups: shape.n_heads, width: shape.head_dim }
    }

    /// The keys behind them.
    pub fn of_keys(shape: &AttentionShape) -> Self {
        Self { first: shape.n_heads * shape.head_dim, n_groups: shape.n_kv_heads, width: shape.head_dim }
    }

    /// The values behind those.
    pub fn of_values(shape: &AttentionShape) -> Self {
        Self { first: Self::of_keys(shape).end(), ..Self::of_keys(shape) }
    }

    /// The column behind the last one.
    pub fn end(&self) -> usize {
        self.first + self.n_groups * self.width
    }
}

/// Why a device refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// It has no room.
    #[error("no memory for {what} ({n_bytes} bytes)")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// How much of it.
        n_bytes: usize,
    },
    /// It cannot hold or compute this.
    #[error("this backend cannot do {0}")]
    Unsupported(String),
    /// The device or its driver failed.
    #[error("the device failed: {0}")]
    Device(String),
}
