//! What operations take: weights with their biases, norms, and the buffers between unfused operations.
//! Does not know who computes.

use super::{BackendError, DeviceMemory};
use crate::config::Routing;

/// A root mean square norm: its gain and what is added to the mean square.
#[derive(Debug)]
pub struct Norm<'a, B: DeviceMemory> {
    /// One element a column.
    pub gain: &'a B::Vector,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: DeviceMemory> Clone for Norm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for Norm<'_, B> {}

/// What chooses each row's experts: the `routing.n_used` with the highest sum of score and bias (ties: the smaller index). Their
/// weights are their scores without the bias, made to sum to 1 if `routing.normalize`, times `routing.scale`.
#[derive(Debug)]
pub struct Router<'a, B: DeviceMemory> {
    /// `[rows, experts]`.
    pub logits: &'a B::Buffer,
    /// One element an expert.
    pub bias: Option<&'a B::Vector>,
    /// How logits become weights.
    pub routing: &'a Routing,
}

impl<B: DeviceMemory> Clone for Router<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: DeviceMemory> Copy for Router<'_, B> {}

/// A matrix and the bias that is added to every row of its products.
pub struct Linear<B: DeviceMemory> {
    /// `[out, in]`.
    pub weight: B::Matrix,
    /// `[out]`.
    pub bias: Option<B::Vector>,
}

/// A gated feed-forward network (SwiGLU, GeGLU; arXiv:2002.05202).
pub struct GatedMlp<B: DeviceMemory> {
    /// Rows of gate, and of up.
    pub width: usize,
    /// Gate stacked on up, `[2 * width, in]`: two parts, or one.
    pub gate_up: Linear<B>,
    /// `[out, width]`.
    pub down: Linear<B>,
}

/// The buffers between the operations that a fusion consists of. A backend that overrides the fusions never sets their rows.
pub struct Scratch<B: DeviceMemory> {
    /// Normed rows, `[tokens, hidden]`.
    pub normed: B::Buffer,
    /// A product before it is summed over devices and added to the residual stream, `[tokens, hidden]`.
    pub partial: B::Buffer,
    /// One for each width of a feed-forward network.
    pub mlps: Vec<MlpScratch<B>>,
}

/// The buffers within a gated feed-forward network of one width.
pub struct MlpScratch<B: DeviceMemory> {
    /// Columns of `hidden`.
    pub width: usize,
    /// `[tokens, 2 * width]`.
    pub gate_up: B::Buffer,
    /// `[tokens, width]`.
    pub hidden: B::Buffer,
}

impl<B: DeviceMemory> Scratch<B> {
    /// Buffers for `max_rows` rows of `hidden` columns, and for networks of these widths.
    ///
    /// # Errors
    /// When the memory of the device does not suffice.
    pub fn new(
        backend: &B,
        max_rows: usize,
        hidden: usize,
        widths: impl IntoIterator<Item = usize>,
    ) -> Result<Self, BackendError> {
        let mut mlps: Vec<MlpScratch<B>> = Vec::new();
        for width in widths {
            if mlps.iter().all(|mlp| mlp.width != width) {
                let (gate_up, hidden) =
                    (backend.buffer(max_rows, 2 * width)?, backend.buffer(max_rows, width)?);
                mlps.push(MlpScratch { width, gate_up, hidden });
            }
        }
        let (normed, partial) = (backend.buffer(max_rows, hidden)?, backend.buffer(max_rows, hidden)?);
        Ok(Self { normed, partial, mlps })
    }
}
