//! Checkpoints whose linear layers are stored in few bits, in the layouts of other libraries. Each is decoded
//! when it is loaded, into the smallest format of this engine that holds exactly the same numbers. Does not
//! know what layers are for.

mod coded_rows;
mod codes;
mod layer;
mod layouts;
mod scheme;
mod stacked;

use safetensors::Dtype;
use throng_kernels::quant::Format;
use throng_os::mapped_file::FileStamp;

use crate::safetensors::{RawTensor, SafetensorsFolder};
use crate::{ByteTensor, FileChanged, TensorSource, TensorView};

use layer::Layer;
use stacked::Stack;

pub use layouts::Layout;
pub use scheme::{Scheme, SchemeError};
pub use stacked::ExpertRows;

/// A folder with a quantized checkpoint. Layers stored in floats are read as they are.
#[derive(Debug)]
pub struct QuantizedFolder {
    folder: SafetensorsFolder,
    scheme: Scheme,
}

/// A matrix that was decoded, row after row.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedMatrix {
    /// The name of its weight in the file.
    pub name: String,
    /// Encoding of its elements now.
    pub format: Format,
    /// Bytes of all elements.
    pub data: Vec<u8>,
    /// Bytes that it takes in the file.
    pub n_stored_bytes: usize,
}

/// Layout of linear layers of a checkpoint, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// The name of the layout.
    pub name: &'static str,
    /// The layout of the stored weights.
    pub layout: Layout,
    /// The format in which their numbers are held where it has them exactly; else F32.
    pub held: Format,
    /// Number of elements of the weights.
    pub n_elements: u64,
    /// Bytes of these layers in the files, scales included.
    pub n_stored_bytes: u64,
}

/// The size of one layer's weight, which has to be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodedWeight {
    /// The format in which its numbers are held where it has them exactly; else F32.
    pub held: Format,
    /// Number of elements of the weight.
    pub n_elements: u64,
    /// Bytes of the format in the files, scales included.
    pub n_stored_bytes: u64,
}

impl EncodedWeight {
    /// Bytes of its numbers in a format.
    pub fn n_bytes_in(&self, format: Format) -> u64 {
        self.n_elements * format.block_bytes() as u64 / format.block_elements() as u64
    }
}

/// Reason why a layer was not decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A tensor of the layer is missing.
    #[error("the model lacks the tensor {0}")]
    Missing(String),
    /// No group of the configuration is about the layer.
    #[error("the quantization_config does not say how {0} is stored")]
    Layout(String),
    /// The experts of a layout that is read one by one are in one tensor.
    #[error("tensor {0}: experts of this format are not read from one tensor")]
    Stack(String),
    /// A tensor of the layer has another type or shape than the scheme and the layer require.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Expected type and shape.
        expected: String,
        /// Found type and shape of the tensor.
        found: String,
    },
}

/// Endings of tensors that belong to a layer's weight, or describe the rounding of activations, keys and
/// values.
const PARTS: [&str; 18] = [
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
    "scales",
];

/// Endings of the tensor that has the codes of a layer, or of all experts.
const CODES: [&str; 4] = ["weight_packed", "qweight", "weight", ""];

/// Endings of all tensors of a layer.
fn ends() -> impl Iterator<Item = &'static str> {
    PARTS.into_iter().chain(["weight", "qweight", "qzeros", "g_idx"])
}

impl QuantizedFolder {
    /// The folder's tensors by this scheme.
    pub fn new(folder: SafetensorsFolder, scheme: Scheme) -> Self {
        Self { folder, scheme }
    }

    /// Scheme of the layers.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The layer of a weight, and its layout.
    fn layer<'a>(
        &'a self,
        name: &'a str,
        shape: [usize; 2],
        only_checks: bool,
    ) -> Option<(Layer<'a>, Result<Layout, DecodeError>)> {
        let layer = name.strip_suffix(".weight").filter(|_| self.has_encoded(name))?;
        let layout = self.scheme.of_layer(layer).ok_or_else(|| DecodeError::Layout(layer.to_owned()));
        Some((Layer { folder: &self.folder, name: layer, shape, only_checks }, layout))
    }

    fn layout_of_stack(&self, name: &str) -> Result<Layout, DecodeError> {
        self.scheme.of_layer(name).ok_or_else(|| DecodeError::Layout(name.to_owned()))
    }

    fn size_of(&self, name: &str) -> Option<(Layout, EncodedWeight)> {
        let is_stack = stacked::is_stack(&self.folder, name);
        let layout = self.scheme.of_layer(if is_stack { name } else { name.trim_end_matches(".weight") })?;
        let parts = self.encoded_parts(name);
        let n_stored_bytes = parts.iter().map(|(_, part)| part.data.len() as u64).sum();
        let has_exponents = parts.iter().any(|(_, part)| part.dtype == Dtype::F8_E8M0);
        let (_, codes) = parts.into_iter().find(|(end, _)| CODES.contains(end))?;
        let n_elements = codes.data.len() * 8 / layout.bits;
        // Matrices of experts may have their columns first.
        let cols = match codes.shape {
            [_, rows, cols] => vec![*rows, *cols],
            [rows, ..] => vec![n_elements / rows.max(&1)],
            [] => return None,
        };
        let formats: Vec<Format> = cols.into_iter().map(|n| layout.usual_format(n, has_exponents)).collect();
        let is_sure = formats.iter().all(|format| *format == formats[0]);
        let held = if is_sure { formats[0] } else { Format::F32 };
        Some((layout, EncodedWeight { held, n_elements: n_elements as u64, n_stored_bytes }))
    }
}

impl TensorSource for QuantizedFolder {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.folder.tensor(name)
    }

    fn names(&self) -> Vec<&str> {
        let is_part = |name: &str| PARTS.iter().any(|part| name.ends_with(part));
        let names = self.folder.names().into_iter();
        names.filter(|name| !is_part(name) && !stacked::is_part(&self.folder, name)).collect()
    }

    fn has_encoded(&self, name: &str) -> bool {
        let Some(layer) = name.strip_suffix(".weight") else { return stacked::is_stack(&self.folder, name) };
        self.folder.tensor(name).is_none()
            && ["weight", "qweight", "weight_packed"]
                .iter()
                .any(|end| self.folder.raw(&format!("{layer}.{end}")).is_some())
    }

    fn encoded_names(&self) -> Vec<String> {
        let weight = |name: &str| {
            if stacked::is_stack(&self.folder, name) {
                return Some(name.to_owned());
            }
            let layer =
                [".weight_packed", ".qweight", ".weight"].iter().find_map(|end| name.strip_suffix(end))?;
            Some(format!("{layer}.weight"))
        };
        let mut names: Vec<String> = self.folder.all_names().filter_map(weight).collect();
        names.dedup();
        names.into_iter().filter(|name| self.has_encoded(name)).collect()
    }

    fn encoded_parts(&self, name: &str) -> Vec<(&'static str, RawTensor<'_>)> {
        if stacked::is_stack(&self.folder, name) {
            let ends = std::iter::once("").chain(stacked::FACTORS);
            return ends.filter_map(|end| Some((end, self.folder.raw(&format!("{name}{end}"))?))).collect();
        }
        let layer = name.trim_end_matches(".weight");
        ends().filter_map(|end| Some((end, self.folder.raw(&format!("{layer}.{end}"))?))).collect()
    }

    fn encodings(&self) -> Vec<Encoding> {
        let mut encodings: Vec<Encoding> = Vec::new();
        for name in self.encoded_names() {
            let Some((layout, weight)) = self.size_of(&name) else { continue };
            let EncodedWeight { held, n_elements, n_stored_bytes } = weight;
            match encodings.iter_mut().find(|known| (known.layout, known.held) == (layout, held)) {
                Some(encoding) => {
                    encoding.n_elements += n_elements;
                    encoding.n_stored_bytes += n_stored_bytes;
                }
                None => {
                    let name = self.scheme.name;
                    encodings.push(Encoding { name, layout, held, n_elements, n_stored_bytes });
                }
            }
        }
        encodings
    }

    fn encoded_weight(&self, name: &str) -> Option<EncodedWeight> {
        self.size_of(name).filter(|_| self.has_encoded(name)).map(|(_, weight)| weight)
    }

    fn decode(&self, name: &str, shape: [usize; 2]) -> Option<Result<DecodedMatrix, DecodeError>> {
        let (layer, layout) = self.layer(name, shape, false)?;
        let n_stored_bytes = layer.n_stored_bytes(ends());
        let decoded = layout.and_then(|layout| layout.decode(&layer));
        Some(decoded.map(|(format, data)| DecodedMatrix {
            name: name.to_owned(),
            format,
            data,
            n_stored_bytes,
        }))
    }

    fn decode_expert(&self, name: &str, rows: ExpertRows) -> Option<Result<DecodedMatrix, DecodeError>> {
        stacked::is_stack(&self.folder, name).then(|| {
            let layout = self.layout_of_stack(name)?;
            let stack = Stack { folder: &self.folder, name, rows, only_checks: false };
            let (format, data) = layout.decode_experts(&stack)?;
            let n_stored_bytes = rows.n * rows.shape[1] * layout.bits / 8;
            Ok(DecodedMatrix { name: name.to_owned(), format, data, n_stored_bytes })
        })
    }

    fn check_encoded(&self, name: &str, shape: [usize; 2]) -> Option<Result<(), DecodeError>> {
        let (layer, layout) = self.layer(name, shape, true)?;
        Some(layout.and_then(|layout| layout.decode(&layer)).map(drop))
    }

    fn check_expert(&self, name: &str, rows: ExpertRows) -> Option<Result<(), DecodeError>> {
        stacked::is_stack(&self.folder, name).then(|| {
            let stack = Stack { folder: &self.folder, name, rows, only_checks: true };
            self.layout_of_stack(name)?.decode_experts(&stack).map(drop)
        })
    }

    fn stored_names(&self) -> Vec<&str> {
        let is_part = |name: &str| {
            let end = name.rsplit('.').next().unwrap_or_default();
            PARTS.contains(&end) || stacked::is_part(&self.folder, name)
        };
        self.folder.all_names().filter(|name| !is_part(name)).collect()
    }

    fn other_type(&self, name: &str) -> Option<String> {
        self.folder.other_type(name)
    }

    fn byte_tensor(&self, name: &str) -> Option<ByteTensor<'_>> {
        self.folder.byte_tensor(name)
    }

    fn stamps(&self) -> Option<Vec<FileStamp>> {
        self.folder.stamps()
    }

    fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.folder.check_unchanged()
    }

    fn release(&self, name: &str) {
        self.folder.release(name);
        if let Some(layer) = name.strip_suffix(".weight") {
            ["qweight", "weight_packed"]
                .iter()
                .for_each(|end| self.folder.release(&format!("{layer}.{end}")));
        }
    }
}
