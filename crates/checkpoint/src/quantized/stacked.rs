//! Experts in one tensor, `[experts, rows, columns]` or with rows and columns exchanged, as transformers
//! writes them in FP8 (blocks, or a factor for each expert), FBGEMM in FP8 with factors for rows, and
//! ModelOpt in FP8 and NVFP4. The names of the factors begin with the name of the tensor. Does not know
//! families.

use std::borrow::Cow;

use safetensors::Dtype;
use throng_kernels::quant::Format;

use super::coded_rows::CodedRows;
use super::codes::E2M1_BITS;
use super::layer::numbers;
use super::{DecodeError, RawTensor};
use crate::nvfp4;
use crate::safetensors::SafetensorsFolder;

/// Endings of the factors' names.
pub(super) const FACTORS: [&str; 4] = ["_scale_inv", "_weight_scale", "_weight_scale_2", "_scale"];
/// Endings of tensors that describe the rounding of activations.
const ROUNDING: [&str; 2] = ["_input_scale", "_activation_scale"];

/// Rows of one expert in a tensor with all experts: the first row, the number of rows, and their distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRows {
    /// Index of the expert.
    pub expert_idx: usize,
    /// Number of experts in the tensor.
    pub n_experts: usize,
    /// Rows and columns of an expert's matrix.
    pub shape: [usize; 2],
    /// Whether the tensor has columns before rows.
    pub is_transposed: bool,
    /// Index of the first row.
    pub first: usize,
    /// The number of rows.
    pub n: usize,
    /// Distance between two rows.
    pub step: usize,
}

impl ExpertRows {
    /// Dimensions of an expert's matrix as it is stored.
    fn stored(self) -> [usize; 2] {
        let [rows, cols] = self.shape;
        if self.is_transposed { [cols, rows] } else { [rows, cols] }
    }

    /// The dimensions of a tensor in which `n` neighbouring columns share an element.
    fn stored_by(self, n: usize) -> [usize; 2] {
        let [rows, cols] = self.shape;
        if self.is_transposed { [cols / n, rows] } else { [rows, cols / n] }
    }

    /// Indices of the rows.
    fn indices(self) -> impl Iterator<Item = usize> + Clone {
        (0..self.n).map(move |i| self.first + i * self.step)
    }

    /// The bytes of an expert's matrix, of `n` neighbouring columns each, row after row.
    fn in_order(self, stored: &[u8], n: usize) -> Cow<'_, [u8]> {
        let of_row = |row| (0..self.shape[1]).step_by(n).map(move |col| stored[self.at(row, col, n)]);
        Cow::Owned(self.indices().flat_map(of_row).collect())
    }

    /// Place of the element of a row and column in a matrix of these stored dimensions, `n` columns to an
    /// element.
    fn at(self, row: usize, col: usize, n: usize) -> usize {
        if self.is_transposed { col / n * self.shape[0] + row } else { row * (self.shape[1] / n) + col / n }
    }
}

/// Whether a tensor holds experts in such a layout.
pub(super) fn is_stack(folder: &SafetensorsFolder, name: &str) -> bool {
    let holds_codes = |tensor: RawTensor<'_>| {
        tensor.shape.len() == 3 && [Dtype::F8_E4M3, Dtype::U8].contains(&tensor.dtype)
    };
    folder.raw(name).is_some_and(holds_codes)
        && FACTORS.iter().any(|end| folder.raw(&format!("{name}{end}")).is_some())
}

/// Whether a tensor belongs to another one that holds experts.
pub(super) fn is_part(folder: &SafetensorsFolder, name: &str) -> bool {
    let mut stems = FACTORS.iter().chain(&ROUNDING).filter_map(|end| name.strip_suffix(end));
    stems.any(|stem| is_stack(folder, stem))
}

/// The tensors of such a stack.
pub(super) struct Stack<'a> {
    pub(super) folder: &'a SafetensorsFolder,
    pub(super) name: &'a str,
    pub(super) rows: ExpertRows,
    /// Whether only types and shapes are checked.
    pub(super) only_checks: bool,
}

impl<'a> Stack<'a> {
    /// The expert's part of a tensor, of this `shape`. A tensor without a dimension of experts is shared by
    /// all.
    fn own(&self, end: &str, dtypes: &[Dtype], shape: [usize; 2]) -> Result<RawTensor<'a>, DecodeError> {
        let name = format!("{}{end}", self.name);
        let tensor = self.folder.raw(&name).ok_or_else(|| DecodeError::Missing(name.clone()))?;
        let whole = [self.rows.n_experts, shape[0], shape[1]];
        let has_experts = match tensor.shape {
            [] | [1] if shape == [1, 1] => Some(false),
            [n] if shape == [1, 1] && *n == self.rows.n_experts => Some(true),
            dimensions => (dimensions == whole).then_some(true),
        };
        match has_experts.filter(|_| dtypes.contains(&tensor.dtype)) {
            Some(false) => Ok(tensor),
            Some(true) => {
                let n_bytes = tensor.data.len() / self.rows.n_experts;
                Ok(RawTensor { data: &tensor.data[self.rows.expert_idx * n_bytes..][..n_bytes], ..tensor })
            }
            None => Err(DecodeError::Tensor {
                name,
                expected: format!(
                    "{} {whole:?}",
                    dtypes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
                ),
                found: format!("{} {:?}", tensor.dtype, tensor.shape),
            }),
        }
    }

    /// FP8 with factors for blocks of the stored dimensions, or for whole rows, columns or experts.
    pub(super) fn fp8(&self, block: Option<[usize; 2]>) -> Result<(Format, Vec<u8>), DecodeError> {
        let (rows, stored) = (self.rows, self.rows.stored());
        let codes = self.own("", &[Dtype::F8_E4M3], stored)?;
        let factor = |end: &&&str| self.folder.raw(&format!("{}{end}", self.name)).is_some();
        let end = FACTORS.iter().find(factor).ok_or_else(|| DecodeError::Missing(self.name.to_owned()))?;
        let [high, wide] = block.unwrap_or_else(|| self.whole_dimensions(end));
        let grid = [stored[0].div_ceil(high.max(1)), stored[1].div_ceil(wide.max(1))];
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E8M0];
        let factors = self.own(end, &dtypes, grid)?;
        if self.only_checks {
            return Ok((Format::F32, Vec::new()));
        }
        let factors = numbers(&factors);
        let codes = rows.in_order(codes.data, 1);
        let scale = |row, col| {
            let at = rows.at(row, col, 1);
            factors[at / stored[1] / high * grid[1] + at % stored[1] / wide]
        };
        let columns = if rows.is_transposed { high } else { wide };
        Ok(CodedRows { rows: rows.indices(), cols: rows.shape[1], codes, scale }.e4m3(columns))
    }

    /// The block that has one factor, where the factors are for whole rows or columns.
    fn whole_dimensions(&self, end: &str) -> [usize; 2] {
        let stored = self.rows.stored();
        match self.folder.raw(&format!("{}{end}", self.name)).map(|factors| factors.shape) {
            Some([_, 1, n]) if *n == stored[1] => [stored[0], 1],
            Some([_, n, 1]) if *n == stored[0] => [1, stored[1]],
            _ => stored,
        }
    }

    /// NVFP4: the codes of two neighbouring columns in a byte, and a second factor, one for all experts or
    /// one for each.
    pub(super) fn nvfp4(&self) -> Result<(Format, Vec<u8>), DecodeError> {
        let rows = self.rows;
        if !rows.shape[1].is_multiple_of(nvfp4::GROUP) {
            return Err(DecodeError::Tensor {
                name: self.name.to_owned(),
                expected: format!("a multiple of {} columns", nvfp4::GROUP),
                found: format!("{}", rows.shape[1]),
            });
        }
        let codes = self.own("", &[Dtype::U8], rows.stored_by(8 / E2M1_BITS))?;
        let factors = self.own("_weight_scale", &[Dtype::F8_E4M3], rows.stored_by(nvfp4::GROUP))?;
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16];
        let second = numbers(&self.own("_weight_scale_2", &dtypes, [1, 1])?)[0];
        if self.only_checks {
            return Ok((Format::F32, Vec::new()));
        }
        let codes = rows.in_order(codes.data, 8 / E2M1_BITS);
        let scale = |row, col| factors.data[rows.at(row, col, nvfp4::GROUP)];
        Ok(CodedRows { rows: rows.indices(), cols: rows.shape[1], codes, scale }.nvfp4(second))
    }
}
