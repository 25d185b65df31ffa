//! The tensors of one linear layer, by the endings of their names. Does not know layouts.

use safetensors::Dtype;
use throng_kernels::quant::{Format, dequantize_row};

use super::DecodeError;
use super::codes::e8m0;
use crate::safetensors::{RawTensor, SafetensorsFolder};

/// The tensors of one linear layer.
pub(super) struct Layer<'a> {
    pub(super) folder: &'a SafetensorsFolder,
    /// Name of the layer, without an ending.
    pub(super) name: &'a str,
    /// Rows and columns of its weight.
    pub(super) shape: [usize; 2],
    /// Whether only types and shapes are checked.
    pub(super) only_checks: bool,
}

impl<'a> Layer<'a> {
    pub(super) fn find(&self, end: &str) -> Option<RawTensor<'a>> {
        self.folder.raw(&format!("{}.{end}", self.name))
    }

    /// The tensor with this ending, of one of these types and this shape.
    pub(super) fn tensor(
        &self,
        end: &str,
        dtypes: &[Dtype],
        shape: &[usize],
    ) -> Result<RawTensor<'a>, DecodeError> {
        let name = || format!("{}.{end}", self.name);
        let tensor = self.find(end).ok_or_else(|| DecodeError::Missing(name()))?;
        if dtypes.contains(&tensor.dtype) && tensor.shape == shape {
            return Ok(tensor);
        }
        let dtypes: Vec<String> = dtypes.iter().map(ToString::to_string).collect();
        Err(DecodeError::Tensor {
            name: name(),
            expected: format!("{} {shape:?}", dtypes.join(" or ")),
            found: format!("{} {:?}", tensor.dtype, tensor.shape),
        })
    }

    /// The numbers of a tensor of floats of this shape.
    pub(super) fn floats(&self, end: &str, shape: &[usize]) -> Result<Vec<f32>, DecodeError> {
        self.numbers(end, &[Dtype::F32, Dtype::F16, Dtype::BF16], shape)
    }

    /// The numbers of a tensor of one of these types and of this shape; a placeholder in a check.
    pub(super) fn numbers(
        &self,
        end: &str,
        dtypes: &[Dtype],
        shape: &[usize],
    ) -> Result<Vec<f32>, DecodeError> {
        let tensor = self.tensor(end, dtypes, shape)?;
        Ok(if self.only_checks { vec![1.0] } else { numbers(&tensor) })
    }

    /// The 32-bit integers of a tensor of this shape.
    pub(super) fn integers(&self, end: &str, shape: &[usize]) -> Result<Vec<u32>, DecodeError> {
        let tensor = self.tensor(end, &[Dtype::I32], shape)?;
        if self.only_checks {
            return Ok(Vec::new());
        }
        Ok(tensor.data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    /// Placeholder for numbers that are not needed.
    pub(super) fn checked(&self) -> Option<(Format, Vec<u8>)> {
        self.only_checks.then_some((Format::F32, Vec::new()))
    }

    /// Refuses rows that are not whole groups of columns.
    pub(super) fn check_whole_groups(&self, group: usize) -> Result<(), DecodeError> {
        let [_, cols] = self.shape;
        if cols.is_multiple_of(group) {
            return Ok(());
        }
        Err(DecodeError::Tensor {
            name: format!("{}.weight", self.name),
            expected: format!("a multiple of {group} columns"),
            found: format!("{cols}"),
        })
    }

    /// Bytes of its tensors with these endings.
    pub(super) fn n_stored_bytes(&self, ends: impl Iterator<Item = &'static str>) -> usize {
        ends.filter_map(|end| self.find(end)).map(|tensor| tensor.data.len()).sum()
    }
}

/// The numbers of a tensor of F32, F16, BF16 or E8M0.
pub(super) fn numbers(tensor: &RawTensor<'_>) -> Vec<f32> {
    if tensor.dtype == Dtype::F8_E8M0 {
        return tensor.data.iter().map(|&code| e8m0(code)).collect();
    }
    let format = match tensor.dtype {
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::BF16,
        _ => Format::F32,
    };
    let mut numbers = vec![0.0; tensor.data.len() / format.block_bytes()];
    dequantize_row(format, tensor.data, &mut numbers);
    numbers
}
