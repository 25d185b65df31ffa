//! Stored tensors by name, out of GGUF files and of safetensors folders, and the layouts in which other
//! libraries quantize them. Does not know models, nor the purpose and computation of tensors.
#![forbid(unsafe_code)]

mod file_bytes;
pub mod gguf;
pub mod mxfp4;
pub mod nvfp4;
pub mod quantized;
pub mod safetensors;

use std::path::PathBuf;

use throng_kernels::quant::{Format, dequantize_row};
use throng_os::mapped_file::FileStamp;

use quantized::{DecodeError, DecodedMatrix, EncodedWeight, Encoding, ExpertRows};
use safetensors::RawTensor;

/// One stored tensor: its bytes lie in a mapped file and were checked against the file's length.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// Dimensions, slowest first (as safetensors and PyTorch have them; GGUF's order is reversed on reading).
    pub shape: &'a [usize],
    /// Encoding of the elements.
    pub format: Format,
    /// Exactly the bytes of all elements, row after row.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// All elements as f32; zeros where the data is left out, as it is in a check of shapes.
    pub fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.shape.iter().product()];
        if !self.data.is_empty() {
            dequantize_row(self.format, self.data, &mut numbers);
        }
        numbers
    }
}

/// One stored tensor of plain bytes: codes of few bits or their scales, which a loader combines.
#[derive(Debug, Clone, Copy)]
pub struct ByteTensor<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// Dimensions, slowest first.
    pub shape: &'a [usize],
    /// Elements of one byte each.
    pub data: &'a [u8],
}

/// Advice about a file whose content does not match its name.
const BRING_AGAIN: &str = " (the file is damaged, or was not brought whole: delete it and bring it \
    again, for example with `throng pull`)";

/// Kind of a file that is not a model, from its first bytes; `None` if they do not determine it.
fn no_model(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"version https://git-lfs") {
        return Some("it is the pointer of Git LFS in place of the file: `git lfs pull` brings it");
    }
    let begins =
        |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
    ["<!doctype", "<html", "<?xml"]
        .into_iter()
        .any(begins)
        .then_some("it is a page of the web in place of the file")
}

/// A weight file was truncated or written to while it was read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct FileChanged {
    /// Path of the file.
    pub path: PathBuf,
    /// The error of the system.
    pub source: std::io::Error,
}

/// Tensors by name. Implemented by GGUF files and safetensors folders.
pub trait TensorSource: Send + Sync {
    /// The tensor of that name, if there is one.
    fn tensor(&self, name: &str) -> Option<TensorView<'_>>;

    /// All names, sorted.
    fn names(&self) -> Vec<&str>;

    /// Bytes of the tensor of that name, if there is one.
    fn n_bytes(&self, name: &str) -> Option<usize> {
        Some(self.tensor(name)?.data.len())
    }

    /// The tensor of bytes of that name, if there is one. It is not among [`Self::names`].
    fn byte_tensor(&self, _name: &str) -> Option<ByteTensor<'_>> {
        None
    }

    /// The names of all tensors of bytes, sorted.
    fn byte_names(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The names of all tensors in the files, of any type.
    fn stored_names(&self) -> Vec<&str> {
        [self.names(), self.byte_names()].concat()
    }

    /// Element type of a stored tensor that [`Self::tensor`] cannot read because of that type.
    fn other_type(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether the weight of that name is stored in the layout of another library, and has to be
    /// [decoded](Self::decode). It is not among [`Self::names`].
    fn has_encoded(&self, _name: &str) -> bool {
        false
    }

    /// The names of all such weights, sorted.
    fn encoded_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// The tensors that such a weight is stored in, by their endings.
    fn encoded_parts(&self, _name: &str) -> Vec<(&'static str, RawTensor<'_>)> {
        Vec::new()
    }

    /// Layouts of such weights, each layout once, with the format in which they are held if it represents
    /// their numbers exactly.
    fn encodings(&self) -> Vec<Encoding> {
        Vec::new()
    }

    /// The size of such a weight; `None` if there is none of that name.
    fn encoded_weight(&self, _name: &str) -> Option<EncodedWeight> {
        None
    }

    /// Decodes such a weight of `[rows, cols]`; `None` if there is none of that name.
    fn decode(&self, _name: &str, _shape: [usize; 2]) -> Option<Result<DecodedMatrix, DecodeError>> {
        None
    }

    /// Rows of one expert of such a weight that holds the matrices of all experts; `None` if there is none of
    /// that name.
    fn decode_expert(&self, _name: &str, _rows: ExpertRows) -> Option<Result<DecodedMatrix, DecodeError>> {
        None
    }

    /// Makes the checks of [`Self::decode`] without reading codes and scales.
    fn check_encoded(&self, _name: &str, _shape: [usize; 2]) -> Option<Result<(), DecodeError>> {
        None
    }

    /// Makes the checks of [`Self::decode_expert`] without reading codes and scales.
    fn check_expert(&self, _name: &str, _rows: ExpertRows) -> Option<Result<(), DecodeError>> {
        None
    }

    /// The length and times of each file when it was opened; `None` when the tensors are not in files.
    fn stamps(&self) -> Option<Vec<FileStamp>> {
        None
    }

    /// Refuses the data read so far when a file was truncated or written to meanwhile: it may be zeros in
    /// place of lost bytes.
    ///
    /// # Errors
    /// An error that names the file.
    fn check_unchanged(&self) -> Result<(), FileChanged> {
        Ok(())
    }

    /// The tensor has been copied: the memory of its bytes can be returned to the system. It can still be
    /// read again.
    fn release(&self, _name: &str) {}
}
