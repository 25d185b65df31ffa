//! A float model quantized while it is loaded: the matrices and their formats. Does not know how blocks are
//! computed and which backend holds them.

mod cache;
mod cache_writer;
mod quantizer;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use throng_kernels::quant::Format;

use crate::arch::{Architecture, TensorNames};
use throng_checkpoint::{TensorSource, TensorView};

pub(crate) use cache::CachePlace;
pub(crate) use quantizer::Quantizer;

/// The formats to which the matrices of a float model can be quantized while it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, non_camel_case_types, reason = "the names are those of the formats")]
pub enum Quantization {
    Q8_0,
    Q4_0,
    Q4_K,
}

/// Options for quantizing a model while it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// Format to which weights are quantized.
    pub to: Quantization,
    /// A folder where the result is kept for the next start.
    pub cache: Option<PathBuf>,
}

/// Use of the folder of kept quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheUse {
    /// No cache: none was named, the backend has no packed weights, or the model is not in files.
    None,
    /// The weights were read from this file.
    Read,
    /// The weights were written to the file for the next start.
    Written,
    /// The weights could not be written to this file; the log has the reason.
    Failed,
}

/// Report of quantization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeReport {
    /// Requested format of the weights.
    pub to: Quantization,
    /// Bytes of the quantized matrices in the file.
    pub stored_bytes: u64,
    /// The resulting formats, in order of first use: the number of matrices, and their bytes.
    pub formats: Vec<(Format, usize, u64)>,
    /// Number of matrices that stayed as they were because no format fits the length of their rows.
    pub n_kept: usize,
    /// Use of the folder of kept weights.
    pub cache: CacheUse,
    /// Time that all weights took to load, and to keep.
    pub took: Duration,
}

/// Reason why a model cannot be quantized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    /// The model is quantized already.
    #[error(
        "the model is quantized already (tensor {tensor} is {}): only models in F32, F16 and BF16 can be quantized while \
         they are loaded",
        format.name()
    )]
    AlreadyQuantized {
        /// The first matrix that is.
        tensor: String,
        /// Format of the matrix.
        format: Format,
    },
}

impl Quantization {
    /// The format of the quantization's name.
    pub const fn format(self) -> Format {
        match self {
            Self::Q8_0 => Format::Q8_0,
            Self::Q4_0 => Format::Q4_0,
            Self::Q4_K => Format::Q4_K,
        }
    }

    /// The formats for a matrix of this role, in order of preference: the first one is used whose blocks fill
    /// whole rows. The output matrix gets more bits, as in llama.cpp's files; rows that are not whole
    /// superblocks get a plain format of more bits.
    const fn formats(self, role: Role) -> &'static [Format] {
        match (self, role) {
            (_, Role::Router) => &[],
            (Self::Q8_0, _) => &[Format::Q8_0],
            (_, Role::Output) => &[Format::Q6_K, Format::Q8_0],
            (Self::Q4_0, Role::Other) => &[Format::Q4_0],
            (Self::Q4_K, Role::Other) => &[Format::Q4_K, Format::Q5_0],
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format().name().to_ascii_lowercase())
    }
}

/// The role of a matrix, which determines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Computes the logits, also if it is the embedding table too.
    Output,
    /// Chooses experts: small, and a wrong choice is worse than a rounded weight.
    Router,
    Other,
}

/// The format of every tensor of a model that is quantized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizePlan {
    pub(crate) to: Quantization,
    names: &'static TensorNames,
    /// Whether the embeddings are also the output projection.
    tied: bool,
}

impl QuantizePlan {
    /// # Errors
    /// When a tensor that it would quantize is quantized already.
    pub(crate) fn new(
        to: Quantization,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
    ) -> Result<Self, QuantizeError> {
        let mut plan = Self { to, names: architecture.names, tied: architecture.config.tied_embeddings };
        let all = || tensors.names().into_iter().filter_map(|name| tensors.tensor(name));
        let encoded = tensors.encoded_names();
        let mut names = all().map(|tensor| tensor.name).chain(encoded.iter().map(String::as_str));
        plan.tied |= !names.any(|name| is_called(name, architecture.names.output));
        match all().find(|tensor| tensor.shape.len() > 1 && !tensor.format.is_float()) {
            None => Ok(plan),
            Some(tensor) => {
                Err(QuantizeError::AlreadyQuantized { tensor: tensor.name.to_owned(), format: tensor.format })
            }
        }
    }

    /// The format in which a tensor is held: its own when it is a vector or a router, or when no other fits
    /// its rows.
    pub(crate) fn format_of(&self, tensor: &TensorView<'_>) -> Format {
        // Experts in MXFP4 are few bits already.
        if !tensor.format.is_float() {
            return tensor.format;
        }
        let [_, .., cols] = tensor.shape else { return tensor.format };
        let fits = |format: &&Format| cols.is_multiple_of(format.block_elements());
        self.to.formats(self.role(tensor.name)).iter().find(fits).copied().unwrap_or(tensor.format)
    }

    /// Whether the tensor would be quantized if its rows were of a length that fits.
    pub(crate) fn has_format_for(&self, tensor: &TensorView<'_>) -> bool {
        tensor.shape.len() > 1 && !self.to.formats(self.role(tensor.name)).is_empty()
    }

    fn role(&self, name: &str) -> Role {
        let layer = &self.names.layer;
        if is_called(name, layer.router) || is_called(name, layer.shared_router) {
            Role::Router
        } else if is_called(name, self.names.output) || self.tied && is_called(name, self.names.embedding) {
            Role::Output
        } else {
            Role::Other
        }
    }
}

/// Whether a tensor is the weight `wanted`, in a layer or under the prefix of a multimodal or a headless
/// checkpoint.
fn is_called(name: &str, wanted: &str) -> bool {
    let wanted = wanted.strip_prefix("model.").unwrap_or(wanted);
    let before = name.strip_suffix(".weight").and_then(|name| name.strip_suffix(wanted));
    !wanted.is_empty() && before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_as_a_whole_under_any_prefix() {
        for name in
            ["model.embed_tokens.weight", "embed_tokens.weight", "model.language_model.embed_tokens.weight"]
        {
            assert!(is_called(name, "model.embed_tokens"), "{name}");
        }
        assert!(is_called("output.weight", "output"));
        assert!(is_called("blk.3.ffn_gate_inp.weight", "ffn_gate_inp"));
        assert!(!is_called("blk.3.attn_output.weight", "output"));
        assert!(!is_called("model.layers.0.mlp.gate_proj.weight", "mlp.gate"));
        assert!(!is_called("model.layers.0.mlp.gate.bias", "mlp.gate"));
        assert!(!is_called("x..weight", ""));
    }
}
