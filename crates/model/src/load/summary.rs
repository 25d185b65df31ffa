//! Memory of a model's tensors, by format. Does not know the tensors' use.

use throng_kernels::quant::Format;

use super::LoadedModel;
use throng_checkpoint::TensorView;
use throng_checkpoint::quantized::{EncodedWeight, Encoding};

/// Sizes and formats of a model's tensors, as stored or as held in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSummary {
    /// Number of elements of all tensors.
    pub n_parameters: u64,
    /// Bytes of all tensors.
    pub n_bytes: u64,
    /// Formats with the bytes they take, most bytes first.
    pub formats: Vec<(Format, u64)>,
}

impl WeightSummary {
    fn add(&mut self, format: Format, n_parameters: u64, n_bytes: u64) {
        self.n_parameters += n_parameters;
        self.n_bytes += n_bytes;
        match self.formats.iter_mut().find(|(known, _)| *known == format) {
            Some((_, bytes)) => *bytes += n_bytes,
            None => self.formats.push((format, n_bytes)),
        }
    }
}

impl LoadedModel {
    /// Summary of the tensors as they are stored.
    pub fn stored_summary(&self) -> WeightSummary {
        self.summary(false, |tensor| (tensor.format, tensor.data.len() as u64))
    }

    /// Summary of the tensors as they are held: as they are stored, unless the model is quantized.
    pub fn weight_summary(&self) -> WeightSummary {
        self.summary(true, |tensor| (self.held_format(tensor), self.held_bytes(tensor)))
    }

    fn summary(&self, holds: bool, of: impl Fn(&TensorView<'_>) -> (Format, u64)) -> WeightSummary {
        let mut summary = WeightSummary { n_parameters: 0, n_bytes: 0, formats: Vec::new() };
        for tensor in self.tensors.names().into_iter().filter_map(|name| self.tensors.tensor(name)) {
            let (format, n_bytes) = of(&tensor);
            summary.add(format, tensor.shape.iter().product::<usize>() as u64, n_bytes);
        }
        for tensor in self.tensors.byte_names().into_iter().filter_map(|name| self.tensors.byte_tensor(name))
        {
            // Two codes a byte; scales are no parameters.
            let n_codes = if tensor.name.ends_with("_blocks") { 2 * tensor.data.len() as u64 } else { 0 };
            summary.add(Format::MXFP4, n_codes, tensor.data.len() as u64);
        }
        for encoding in self.tensors.encodings() {
            let Encoding { held, n_elements, n_stored_bytes, .. } = encoding;
            let held = if holds { self.held_encoded(held) } else { held };
            let weight = EncodedWeight { held, n_elements, n_stored_bytes };
            summary.add(held, n_elements, if holds { weight.n_bytes_in(held) } else { n_stored_bytes });
        }
        summary.formats.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(*n_bytes));
        summary
    }
}
