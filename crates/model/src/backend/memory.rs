//! Memory of a device: buffers, weights, keys and values, and the copies to it. Does not know operations.

use throng_kernels::low_rank::LowRankPart;
use throng_kernels::quant::Format;

use super::{BackendError, Capability};
use crate::batch_input::BatchInput;
use crate::config::RopeTable;
use crate::kv_cache::KvLayout;
use throng_checkpoint::TensorView;

/// The memory of one device.
pub trait DeviceMemory: Send + Sized + 'static {
    /// Activations: `[rows, cols]` of f32, row-major; `cols` and the most rows are fixed at creation.
    type Buffer: Send;
    /// A weight matrix `[out, in]`, possibly stacked of parts in different formats, in the device's own
    /// layout.
    type Matrix: Send + Sync;
    /// All experts of one layer; [`Infallible`](std::convert::Infallible) on a device without them, as the
    /// types of other optional capabilities.
    type Experts: Send + Sync;
    /// A row of f32 weights (the gain of a norm, the bias of a projection).
    type Vector: Send + Sync;
    /// The low-rank matrices of one adapter for one linear layer.
    type LowRank: Send + Sync;
    /// The cosines and sines of a model's rotary embeddings, for all positions.
    type RopeTables: Send;
    /// Keys and values of all layers, in blocks of 16 tokens.
    type KvCache: Send;
    /// A [`BatchInput`] on the device.
    type Batch: Send;

    /// A buffer without rows, for at most `max_rows` of `cols` elements.
    ///
    /// # Errors
    /// When memory does not suffice.
    fn buffer(&self, max_rows: usize, cols: usize) -> Result<Self::Buffer, BackendError>;

    /// Number of rows of the buffer in use.
    fn n_rows(&self, x: &Self::Buffer) -> usize;

    /// Sets how many rows of the buffer are in use; their contents are unspecified afterwards.
    fn set_rows(&mut self, x: &mut Self::Buffer, n_rows: usize);

    /// A matrix of `parts` stacked along the rows: all `[rows_i, cols]`, each keeping its own format, so that
    /// Q, K and V are one projection. The bytes are copied, in the device's own layout.
    ///
    /// # Errors
    /// When memory does not suffice, or the device does not support the format or the shape.
    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<Self::Matrix, BackendError>;

    /// The experts of one layer as one object, of matrices made with [`MatrixRole::Expert`].
    ///
    /// # Errors
    /// When memory does not suffice, or the device has no mixtures of experts.
    fn experts(&self, _experts: Vec<Expert<Self>>) -> Result<Self::Experts, BackendError> {
        Err(BackendError::lacks(Capability::Experts))
    }

    /// Copies a vector to the device.
    ///
    /// # Errors
    /// When memory does not suffice.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// The low-rank matrices of one adapter for one linear layer with an input of `cols` columns, in
    /// increasing columns of its output. `format`, F32 or BF16, is how exactly the numbers must be held.
    ///
    /// # Errors
    /// When memory does not suffice, or the device has no adapters.
    fn low_rank(
        &self,
        _cols: usize,
        _parts: &[LowRankPart<'_>],
        _format: Format,
    ) -> Result<Self::LowRank, BackendError> {
        Err(BackendError::lacks(Capability::Adapters))
    }

    /// Tables of these rotary embeddings for the positions below `n_positions`, computed once;
    /// [`Rotations`](super::rotations::Rotations) computes them on the host.
    ///
    /// # Errors
    /// When memory does not suffice.
    fn rope_tables(&self, ropes: &[RopeTable], n_positions: usize) -> Result<Self::RopeTables, BackendError>;

    /// An empty cache.
    ///
    /// # Errors
    /// When memory does not suffice or the device does not support the layout.
    fn kv_cache(&self, layout: &KvLayout) -> Result<Self::KvCache, BackendError>;

    /// Copies keys and values of whole blocks over all layers, one copy after the other.
    fn copy_blocks(&mut self, cache: &mut Self::KvCache, copies: &[BlockCopy]);

    /// The layout of a block's bytes in [`Self::export_block`]; `None`: blocks cannot leave this device.
    fn block_layout(&self, _cache: &Self::KvCache) -> Option<DeviceBlockLayout> {
        None
    }

    /// Appends keys and values of a block over all layers to `bytes`, once all operations before have
    /// finished.
    ///
    /// # Errors
    /// When blocks cannot leave this device, or an earlier operation failed on it.
    fn export_block(
        &mut self,
        _cache: &Self::KvCache,
        _block: u32,
        _bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("blocks that leave the device".to_owned()))
    }

    /// Makes exported bytes, as many as [`DeviceBlockLayout::n_bytes`], the keys and values of a block.
    ///
    /// # Errors
    /// Errors of [`Self::export_block`].
    fn import_block(
        &mut self,
        _cache: &mut Self::KvCache,
        _block: u32,
        _bytes: &[u8],
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("blocks from elsewhere".to_owned()))
    }

    /// An empty batch.
    ///
    /// # Errors
    /// When memory does not suffice.
    fn batch(&self) -> Result<Self::Batch, BackendError>;

    /// Copies a step's input to the device.
    fn upload(&mut self, input: &BatchInput, batch: &mut Self::Batch);

    /// Writes `rows`, row after row, to `x`, and sets their number as that of the rows in use.
    fn write_rows(&mut self, x: &mut Self::Buffer, rows: &[f32]);

    /// Waits until all operations before it have finished and returns all rows of `x` in host memory, `[rows,
    /// cols]`. The caller may overwrite the returned rows; the contents of the buffer are unspecified
    /// afterwards.
    ///
    /// # Errors
    /// When this or any earlier operation failed on the device.
    fn download<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a mut [f32], BackendError>;

    /// [`Self::download`] for a caller that does not read the rows marked in `known`: these need no copy, and
    /// their contents are unspecified.
    ///
    /// # Errors
    /// Errors of [`Self::download`].
    fn download_unknown<'a>(
        &mut self,
        x: &'a mut Self::Buffer,
        _known: &[bool],
    ) -> Result<&'a mut [f32], BackendError> {
        self.download(x)
    }
}

/// Role of a weight matrix, which determines its layout and its split over several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixRole {
    /// Rows are looked up by token: split by rows.
    Embedding,
    /// Computes the logits; rows are also looked up if it is the embedding table too. Split by rows.
    Output,
    /// Queries, keys and values stacked in this order, with equal numbers of keys and values, and output
    /// gates, if any, one for each query: split by heads, that is by rows within each.
    QueryKeyValue {
        /// Number of rows of the queries.
        n_query_rows: usize,
        /// Number of rows of the keys.
        n_key_rows: usize,
    },
    /// Projection to all inputs of a recurrent mixer: every device has all of it.
    RecurrentInput,
    /// Gate stacked on up: column-parallel, split by rows within each half.
    GateUp,
    /// Attention output and down projection: split by columns. The products of the devices are summed by
    /// [`DeviceOps::all_reduce`](super::DeviceOps::all_reduce); one of the devices adds the bias.
    RowParallel,
    /// A matrix of one expert, gate stacked on up or down: each expert is split as a network of its own.
    Expert,
    /// Chooses or weighs experts, or projects to their input and from their output: every device has all of
    /// it.
    Router,
}

/// A copy of a block's keys and values to another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block that is read.
    pub from: u32,
    /// The block that is overwritten.
    pub to: u32,
}

/// The bytes of a block as a device exports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceBlockLayout {
    /// Name and version of the layout. Devices with the same name can read each other's blocks.
    pub name: &'static str,
    /// Bytes of a block over all layers.
    pub n_bytes: usize,
}

/// Weights of an expert.
pub struct Expert<B: DeviceMemory> {
    /// Gate stacked on up, two parts: `[2 * width, hidden]`.
    pub gate_up: Linear<B>,
    /// `[hidden, width]`.
    pub down: Linear<B>,
}

/// A matrix and the bias that is added to every row of its products.
pub struct Linear<B: DeviceMemory> {
    /// `[out, in]`.
    pub weight: B::Matrix,
    /// `[out]`.
    pub bias: Option<B::Vector>,
}
