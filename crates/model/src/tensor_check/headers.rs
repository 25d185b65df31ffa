//! The tensors of a source without the bytes of the large ones. Notes the requested ones.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use throng_kernels::quant::Format;

use throng_checkpoint::quantized::{DecodeError, DecodedMatrix, EncodedWeight, Encoding, ExpertRows};
use throng_checkpoint::safetensors::RawTensor;
use throng_checkpoint::{ByteTensor, TensorSource, TensorView};

/// Maximum size of tensors that have their bytes: gains, biases, and values that are checked.
const READ_BYTES: usize = 64 << 10;

/// A source of headers.
pub(super) struct Headers<'a> {
    source: &'a dyn TensorSource,
    read: Mutex<HashSet<String>>,
}

impl<'a> Headers<'a> {
    pub(super) fn of(source: &'a dyn TensorSource) -> Self {
        Self { source, read: Mutex::default() }
    }

    /// Stored tensors that were not read.
    pub(super) fn unread(&self) -> Vec<String> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.source.stored_names().into_iter();
        names.filter(|name| !read.contains(*name)).map(str::to_owned).collect()
    }

    fn note(&self, name: impl Into<String>) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into());
    }

    fn decoded(&self, name: &str, checked: Result<(), DecodeError>) -> Result<DecodedMatrix, DecodeError> {
        checked?;
        self.source.encoded_parts(name).iter().for_each(|(_, part)| self.note(part.name));
        Ok(DecodedMatrix { name: name.to_owned(), format: Format::F32, data: Vec::new(), n_stored_bytes: 0 })
    }
}

impl TensorSource for Headers<'_> {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let tensor = self.source.tensor(name)?;
        self.note(tensor.name);
        let data: &[u8] = if tensor.data.len() > READ_BYTES { &[] } else { tensor.data };
        Some(TensorView { data, ..tensor })
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn byte_tensor(&self, name: &str) -> Option<ByteTensor<'_>> {
        let tensor = self.source.byte_tensor(name)?;
        self.note(tensor.name);
        Some(ByteTensor { data: &[], ..tensor })
    }

    fn other_type(&self, name: &str) -> Option<String> {
        self.source.other_type(name)
    }

    fn has_encoded(&self, name: &str) -> bool {
        self.source.has_encoded(name)
    }

    fn encoded_parts(&self, name: &str) -> Vec<(&'static str, RawTensor<'_>)> {
        self.source.encoded_parts(name)
    }

    fn encodings(&self) -> Vec<Encoding> {
        Vec::new()
    }

    fn encoded_weight(&self, name: &str) -> Option<EncodedWeight> {
        self.source.encoded_weight(name)
    }

    fn decode(&self, name: &str, shape: [usize; 2]) -> Option<Result<DecodedMatrix, DecodeError>> {
        Some(self.decoded(name, self.source.check_encoded(name, shape)?))
    }

    fn decode_expert(&self, name: &str, rows: ExpertRows) -> Option<Result<DecodedMatrix, DecodeError>> {
        Some(self.decoded(name, self.source.check_expert(name, rows)?))
    }
}
