//! The header of one safetensors file and the index of a sharded model
//! (format: <https://huggingface.co/docs/safetensors>). Does not know files.
//!
//! The `safetensors` crate reads the header and checks that the tensors fill the data without holes or
//! overlaps. Before it, a pass that keeps nothing but names bounds what it will allocate and refuses a name
//! that appears twice, which the crate accepts.

use std::collections::HashSet;
use std::fmt;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use throng_kernels::quant::Format;

use super::error::SafetensorsError;
use crate::no_model;

const LENGTH_BYTES: usize = 8;
/// Bounds on what a header may declare; real ones stay below a megabyte and four dimensions.
const MAX_HEADER_BYTES: u64 = 16 << 20;
const MAX_TENSORS: usize = 1 << 17;
const MAX_DIMENSIONS: usize = 8;
/// The largest index in the wild has about 8 MB.
const MAX_INDEX_BYTES: usize = 64 << 20;

/// One tensor as a header declares it, checked: it lies inside the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsEntry {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Encoding of the elements.
    pub dtype: Dtype,
    /// Offset of the first byte from the beginning of the file.
    pub start: usize,
    /// Bytes of all elements.
    pub n_bytes: usize,
}

impl SafetensorsEntry {
    /// Encoding of the elements; `None` where they are not F32, F16 or BF16.
    pub fn format(&self) -> Option<Format> {
        match self.dtype {
            Dtype::F32 => Some(Format::F32),
            Dtype::F16 => Some(Format::F16),
            Dtype::BF16 => Some(Format::BF16),
            _ => None,
        }
    }
}

/// Reads and checks the header of the file whose content is `bytes`; the tensors come sorted by name.
///
/// # Errors
/// When the file is not a whole, consistent safetensors file.
pub fn parse_header(bytes: &[u8]) -> Result<Vec<SafetensorsEntry>, SafetensorsError> {
    if let Some(found) = no_model(bytes) {
        return Err(SafetensorsError::NoModel(found));
    }
    let (length, rest) =
        bytes.split_first_chunk::<LENGTH_BYTES>().ok_or(SafetensorsError::NoHeader { found: bytes.len() })?;
    let needed = u64::from_le_bytes(*length);
    if needed > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderTooLarge { found: needed, limit: MAX_HEADER_BYTES });
    }
    let remaining = rest.len() as u64;
    let json = rest.get(..needed as usize).ok_or(SafetensorsError::Truncated { needed, remaining })?;
    // A copy, since the bytes of a mapped file can change between checks.
    let json = json.to_vec();
    let declared: HeaderBounds = serde_json::from_slice(&json).map_err(SafetensorsError::HeaderJson)?;
    // The crate adds to the last end without a check for overflow.
    if let Some((tensor, end)) = declared.furthest.filter(|(_, end)| *end > remaining) {
        return Err(SafetensorsError::OutOfFile { tensor, end, data_bytes: remaining - needed });
    }

    let layout = |error| SafetensorsError::Layout(SafeTensorError::InvalidHeaderDeserialization(error));
    let metadata: Metadata = serde_json::from_slice(&json).map_err(layout)?;
    let data_start = LENGTH_BYTES + json.len();
    let mut data_end = data_start;
    let mut entries = Vec::new();
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        data_end = data_end.max(data_start + end);
        entries.push(SafetensorsEntry {
            name,
            shape: info.shape.clone(),
            dtype: info.dtype,
            start: data_start + start,
            n_bytes: end - start,
        });
    }
    if data_end != bytes.len() {
        return Err(SafetensorsError::Layout(SafeTensorError::MetadataIncompleteBuffer));
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Shards of a sharded model's tensors: pairs of tensor and file name, sorted by tensor, from the content of
/// `model.safetensors.index.json`. Every file name is a plain one, inside the index's folder.
///
/// # Errors
/// When the index is too large, not of the expected form, or names a file outside its folder.
pub fn parse_index(json: &[u8]) -> Result<Vec<(String, String)>, SafetensorsError> {
    if json.len() > MAX_INDEX_BYTES {
        return Err(SafetensorsError::IndexTooLarge {
            found: json.len() as u64,
            limit: MAX_INDEX_BYTES as u64,
        });
    }
    let Index { weight_map: WeightMap(mut places) } =
        serde_json::from_slice(json).map_err(SafetensorsError::IndexJson)?;
    for (tensor, shard) in &places {
        if !is_plain_file_name(shard) {
            return Err(SafetensorsError::ShardName { tensor: tensor.clone(), shard: shard.clone() });
        }
    }
    places.sort_unstable();
    if let Some(pair) = places.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let message = format!("tensor {:?} appears twice", pair[0].0);
        return Err(SafetensorsError::IndexJson(serde_json::Error::custom(message)));
    }
    Ok(places)
}

/// Whether a name has no separator, no drive and no leading dot: such a name cannot leave the folder it is
/// joined to.
fn is_plain_file_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(WeightMap(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Limits of a header, checked before it is kept: number of tensors, number of dimensions, unique names.
#[derive(Default)]
struct HeaderBounds {
    /// The tensor with the largest end, and that end.
    furthest: Option<(String, u64)>,
}

impl<'de> Deserialize<'de> for HeaderBounds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = HeaderBounds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to their descriptions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderBounds, A::Error> {
                let mut names = HashSet::new();
                let mut bounds = HeaderBounds::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let (_, end) = map.next_value::<EntryBounds>()?.data_offsets;
                        if bounds.furthest.as_ref().is_none_or(|(_, furthest)| end > *furthest) {
                            bounds.furthest = Some((name.clone(), end));
                        }
                    }
                    if names.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    }
                    if let Some(twice) = names.replace(name) {
                        return Err(A::Error::custom(format_args!("tensor {twice:?} appears twice")));
                    }
                }
                Ok(bounds)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryBounds {
    #[serde(rename = "dtype")]
    _dtype: IgnoredAny,
    #[serde(rename = "shape", deserialize_with = "few_elements")]
    _shape: (),
    data_offsets: (u64, u64),
}

fn few_elements<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    struct Elements;
    impl<'de> Visitor<'de> for Elements {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {MAX_DIMENSIONS} numbers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
            let mut n = 0;
            while elements.next_element::<u64>()?.is_some() {
                n += 1;
                if n > MAX_DIMENSIONS {
                    return Err(A::Error::invalid_length(n, &self));
                }
            }
            Ok(())
        }
    }
    deserializer.deserialize_seq(Elements)
}
