//! Rows of a matrix as a file stores them, or decoded from the layout of another library. Does not know the
//! use of the matrix.

use std::borrow::Cow;

use throng_kernels::quant::Format;

use super::{Loader, TensorError, find_tensor, other_names};
use crate::backend::Backend;
use throng_checkpoint::quantized::{DecodeError, DecodedMatrix, ExpertRows};
use throng_checkpoint::{TensorSource, TensorView, nvfp4};

/// Rows of a matrix in a tensor's format, copied where the file has them in another order or another layout.
pub(super) struct StoredRows<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) format: Format,
    pub(super) shape: [usize; 2],
    pub(super) data: Cow<'a, [u8]>,
    /// Bytes that they take in the file.
    pub(super) n_stored_bytes: usize,
}

impl<'a> StoredRows<'a> {
    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView { name: &self.name, shape: &self.shape, format: self.format, data: &self.data }
    }

    fn of(tensor: &TensorView<'a>, shape: [usize; 2]) -> Self {
        let (name, data) = (Cow::Borrowed(tensor.name), Cow::Borrowed(tensor.data));
        Self { name, format: tensor.format, shape, data, n_stored_bytes: tensor.data.len() }
    }

    pub(super) fn of_decoded(
        decoded: Result<DecodedMatrix, DecodeError>,
        shape: [usize; 2],
    ) -> Result<Self, TensorError> {
        let decoded = decoded.map_err(|error| TensorError::Malformed { what: error.to_string() })?;
        Ok(Self {
            name: Cow::Owned(decoded.name),
            format: decoded.format,
            shape,
            data: Cow::Owned(decoded.data),
            n_stored_bytes: decoded.n_stored_bytes,
        })
    }
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Whether the weight exists, in any layout.
    pub(super) fn has(&self, name: &str) -> bool {
        has_weight(self.source, name)
    }

    /// Reason why there is no tensor of this name: its type is read only as a part of a quantized weight, or
    /// it is not stored.
    pub(super) fn missing(&self, name: &str) -> TensorError {
        let mut names = std::iter::once(name.to_owned()).chain(other_names(name));
        let found = names.find_map(|name| Some((self.source.other_type(&name)?, name)));
        match found {
            Some((found, name)) => TensorError::Type { name, found },
            None => TensorError::Missing { name: name.to_owned() },
        }
    }

    /// A matrix of this shape.
    pub(super) fn stored(&self, name: &str, shape: [usize; 2]) -> Result<StoredRows<'a>, TensorError> {
        let decoded = match self.find(name) {
            Some(_) => None,
            None => find_decoded(self.source, name, shape),
        };
        match decoded {
            Some(decoded) => StoredRows::of_decoded(decoded, shape),
            None => self.with_factor(StoredRows::of(&self.checked(name, &shape)?, shape), 0, 1),
        }
    }

    /// The rows multiplied with their factor, if a GGUF file has one in a tensor of its own: that of
    /// `expert_idx`. A matrix without experts counts as one expert.
    pub(super) fn with_factor(
        &self,
        rows: StoredRows<'a>,
        expert_idx: usize,
        n_experts: usize,
    ) -> Result<StoredRows<'a>, TensorError> {
        let Some(name) = self.factor_name(&rows.name, rows.format) else { return Ok(rows) };
        let factors = self.checked(&name, &[n_experts])?.numbers();
        let data = Cow::Owned(nvfp4::with_factor(factors[expert_idx], &rows.data));
        Ok(StoredRows { format: Format::NVFP4_SCALED, data, ..rows })
    }

    /// The tensor of factors that all elements of a tensor in NVFP4 are multiplied with: one, or one for each
    /// expert. Factors of experts that the configuration has too are left to the routing.
    pub(super) fn factor_name(&self, name: &str, format: Format) -> Option<String> {
        let factors = nvfp4::factors_of(name).filter(|_| format == Format::NVFP4)?;
        let of_routing = self.config.has_expert_scales() && factors.ends_with(self.names.expert_scales);
        (!of_routing && self.find(&factors).is_some()).then_some(factors)
    }
}

/// Whether the weight of a name, or of another name of it, exists, in any layout.
pub(crate) fn has_weight(source: &dyn TensorSource, name: &str) -> bool {
    find_tensor(source, name).is_some() || encoded_name(source, name).is_some()
}

/// Finds a weight and decodes it.
fn find_decoded(
    source: &dyn TensorSource,
    name: &str,
    shape: [usize; 2],
) -> Option<Result<DecodedMatrix, DecodeError>> {
    source.decode(&encoded_name(source, name)?, shape)
}

/// Rows of one expert of a weight that holds all experts, decoded.
pub(super) fn find_decoded_expert(
    source: &dyn TensorSource,
    name: &str,
    rows: ExpertRows,
) -> Option<Result<DecodedMatrix, DecodeError>> {
    source.decode_expert(&encoded_name(source, name)?, rows)
}

/// The name under which the weight is stored in the layout of another library.
pub(crate) fn encoded_name(source: &dyn TensorSource, name: &str) -> Option<String> {
    let names = std::iter::once(name.to_owned()).chain(other_names(name));
    names.into_iter().find(|name| source.has_encoded(name))
}
