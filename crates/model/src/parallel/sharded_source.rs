//! A model's tensors for one device: each cut to the device's part. Does not know which part of a tensor that
//! is.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::cut::{Cut, CutBytes};
use super::cuts::{Cuts, TensorPart};
use crate::arch::TensorNames;
use crate::config::{DecoderConfig, Split};
use throng_checkpoint::quantized::{DecodeError, DecodedMatrix, EncodedWeight, Encoding, ExpertRows};
use throng_checkpoint::safetensors::RawTensor;
use throng_checkpoint::{ByteTensor, FileChanged, TensorSource, TensorView};
use throng_os::mapped_file::FileStamp;

/// Tensors of another source, cut. Parts that are not adjacent in the file are copied when they are first
/// read, and kept while this value exists: as long as the weights of one device are loaded.
pub(crate) struct ShardedSource<'a> {
    whole: &'a dyn TensorSource,
    parts: HashMap<String, (TensorPart, OnceLock<Option<CutTensor>>)>,
}

struct CutTensor {
    shape: Vec<usize>,
    bytes: CutBytes,
}

impl<'a> ShardedSource<'a> {
    /// The tensors of a model whose architecture before it was divided is `config`.
    pub(crate) fn new(
        whole: &'a dyn TensorSource,
        config: &DecoderConfig,
        split: &Split,
        names: &TensorNames,
    ) -> Self {
        let cuts = Cuts::new(config, split, names, whole).by_name;
        let parts = cuts.into_iter().map(|(name, part)| (name, (part, OnceLock::new())));
        Self { whole, parts: parts.collect() }
    }

    fn part(&self, name: &str) -> Option<&TensorPart> {
        self.parts.get(name).map(|(part, _)| part)
    }

    /// The part of a tensor that `make` cuts.
    fn made(&self, name: &str, make: impl FnOnce(&Cut) -> Option<CutTensor>) -> Option<&CutTensor> {
        let (part, made) = self.parts.get(name)?;
        let TensorPart::Cut(cut) = part else { return None };
        made.get_or_init(|| make(cut)).as_ref()
    }

    fn cut(&self, name: &str) -> Option<&Cut> {
        match self.part(name)? {
            TensorPart::Cut(cut) => Some(cut),
            TensorPart::Absent => None,
        }
    }
}

impl TensorSource for ShardedSource<'_> {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let whole = self.whole.tensor(name)?;
        if self.part(name).is_none() {
            return Some(whole);
        }
        let cut = self.made(name, |cut| {
            let bytes = cut.of(whole.shape, whole.format, whole.data)?;
            Some(CutTensor { shape: cut.shape(whole.shape), bytes })
        })?;
        Some(TensorView { shape: &cut.shape, data: cut.bytes.within(whole.data), ..whole })
    }

    fn names(&self) -> Vec<&str> {
        self.whole.names()
    }

    fn n_bytes(&self, name: &str) -> Option<usize> {
        let whole = self.whole.tensor(name)?;
        match self.part(name) {
            None => Some(whole.data.len()),
            Some(TensorPart::Absent) => Some(0),
            Some(TensorPart::Cut(cut)) => cut.n_bytes(whole.shape, whole.format),
        }
    }

    fn byte_tensor(&self, name: &str) -> Option<ByteTensor<'_>> {
        let whole = self.whole.byte_tensor(name)?;
        if self.part(name).is_none() {
            return Some(whole);
        }
        let cut = self.made(name, |cut| {
            let inner: usize = whole.shape.get(cut.axis + 1..)?.iter().product();
            let bytes = cut.of_bytes(whole.shape, (1, inner), whole.data)?;
            Some(CutTensor { shape: cut.shape(whole.shape), bytes })
        })?;
        Some(ByteTensor { shape: &cut.shape, data: cut.bytes.within(whole.data), ..whole })
    }

    fn byte_names(&self) -> Vec<&str> {
        self.whole.byte_names()
    }

    fn stored_names(&self) -> Vec<&str> {
        self.whole.stored_names()
    }

    fn other_type(&self, name: &str) -> Option<String> {
        self.whole.other_type(name)
    }

    fn has_encoded(&self, name: &str) -> bool {
        self.whole.has_encoded(name)
    }

    fn encoded_names(&self) -> Vec<String> {
        self.whole.encoded_names()
    }

    fn encoded_parts(&self, name: &str) -> Vec<(&'static str, RawTensor<'_>)> {
        self.whole.encoded_parts(name)
    }

    fn encodings(&self) -> Vec<Encoding> {
        self.whole.encodings()
    }

    fn encoded_weight(&self, name: &str) -> Option<EncodedWeight> {
        self.whole.encoded_weight(name)
    }

    fn decode(&self, name: &str, shape: [usize; 2]) -> Option<Result<DecodedMatrix, DecodeError>> {
        let Some(cut) = self.cut(name) else { return self.whole.decode(name, shape) };
        let weight = self.whole.encoded_weight(name)?;
        let whole = whole_shape(shape, cut.axis, weight.n_elements as usize);
        Some(self.whole.decode(name, whole)?.map(|matrix| cut_matrix(cut, &whole, matrix)))
    }

    fn decode_expert(&self, name: &str, rows: ExpertRows) -> Option<Result<DecodedMatrix, DecodeError>> {
        let Some(cut) = self.cut(name) else { return self.whole.decode_expert(name, rows) };
        let weight = self.whole.encoded_weight(name)?;
        let n_elements = weight.n_elements as usize / rows.n_experts.max(1);
        let cut = Cut { axis: cut.axis - 1, ranges: cut.ranges.clone() };
        let whole = whole_shape(rows.shape, cut.axis, n_elements);
        let all = ExpertRows { shape: whole, first: 0, n: whole[0], step: 1, ..rows };
        Some(self.whole.decode_expert(name, all)?.map(|matrix| {
            let part = cut_matrix(&cut, &whole, matrix);
            let n_bytes = part.data.len() / rows.shape[0];
            let picked = (0..rows.n).map(|i| rows.first + i * rows.step);
            let data = picked.flat_map(|row| &part.data[row * n_bytes..][..n_bytes]).copied().collect();
            DecodedMatrix { data, ..part }
        }))
    }

    fn stamps(&self) -> Option<Vec<FileStamp>> {
        self.whole.stamps()
    }

    fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.whole.check_unchanged()
    }

    fn release(&self, name: &str) {
        self.whole.release(name);
    }
}

/// The shape of a matrix of this number of elements, given that of its part along `axis`.
fn whole_shape(part: [usize; 2], axis: usize, n_elements: usize) -> [usize; 2] {
    let other = part[1 - axis].max(1);
    match axis {
        0 => [n_elements / other, other],
        _ => [other, n_elements / other],
    }
}

/// The part of a matrix. Blocks were considered when ranges were chosen.
fn cut_matrix(cut: &Cut, shape: &[usize; 2], matrix: DecodedMatrix) -> DecodedMatrix {
    let bytes = cut.of(shape, matrix.format, &matrix.data).expect("no range begins within a block");
    let data = bytes.within(&matrix.data).to_vec();
    DecodedMatrix {
        data,
        n_stored_bytes: matrix.n_stored_bytes / shape[cut.axis].max(1) * cut.len(),
        ..matrix
    }
}
