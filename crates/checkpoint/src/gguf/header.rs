//! Reads the header of one GGUF file and checks everything it says against the file's length before it is
//! used (format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). Does not know files and
//! models.

use throng_kernels::quant::Format;

use super::cursor::{Cursor, ReadFault};
use super::error::{GgufError, shorten};
use super::value::{GgufArray, GgufMetadata, GgufStrings, GgufValue};

/// Bounds on what a header may declare; real files have a few dozen keys and a few thousand tensors.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 17;
const MAX_DIMENSIONS: usize = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Fewest bytes of a key with its value (empty key, type, one byte) and of a tensor's entry (empty name, one
/// dimension): bounds the declared counts before anything is allocated for them.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// Header of one file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// The metadata of the file, by key.
    pub metadata: GgufMetadata,
    /// The tensors, in the file's order.
    pub tensors: Vec<GgufTensor>,
    /// Bytes of the header, without the padding after it.
    pub n_bytes: usize,
    /// Start of the tensors' data in the file.
    pub data_start: usize,
}

/// One tensor as the header declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Encoding of the elements.
    pub format: Format,
    /// First byte, counted from [`GgufHeader::data_start`].
    pub offset: usize,
    /// Bytes of all elements.
    pub n_bytes: usize,
    dimensions: [usize; MAX_DIMENSIONS],
    n_dimensions: u8,
}

impl GgufTensor {
    /// Dimensions, slowest first (the file has them fastest first).
    pub fn shape(&self) -> &[usize] {
        &self.dimensions[..usize::from(self.n_dimensions)]
    }
}

impl GgufHeader {
    /// Reads and checks the header of the file whose content is `bytes`.
    ///
    /// # Errors
    /// When the file is not a whole, consistent GGUF file of version 2 or 3, or has tensors of other types
    /// than [`Format`].
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let version = read_version(&mut cursor)?;
        let n_tensors = read_count(&mut cursor, "tensors", MAX_TENSORS, MIN_TENSOR_BYTES)?;
        let n_keys = read_count(&mut cursor, "metadata keys", MAX_KEYS, MIN_KEY_BYTES)?;
        let mut entries = Vec::with_capacity(n_keys);
        for _ in 0..n_keys {
            entries.push(read_entry(&mut cursor)?);
        }
        let metadata = GgufMetadata::new(entries)?;
        let alignment = alignment(&metadata)?;
        // The keys may have used up bytes that the tensors' count was checked against.
        check_count("tensors", n_tensors as u64, MIN_TENSOR_BYTES, &cursor)?;
        let mut tensors = Vec::with_capacity(n_tensors);
        for _ in 0..n_tensors {
            tensors.push(read_tensor(&mut cursor, alignment)?);
        }
        let n_bytes = cursor.n_read();
        let data_start = (n_bytes as u64)
            .checked_next_multiple_of(alignment)
            .and_then(|start| usize::try_from(start).ok())
            .ok_or(GgufError::InvalidAlignment { found: alignment })?;
        check_placement(&tensors, bytes.len().saturating_sub(data_start))?;
        Ok(Self { version, metadata, tensors, n_bytes, data_start })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.u32().map_err(|fault| fault.while_reading("the magic number"))?.to_le_bytes();
    if &magic != b"GGUF" {
        return Err(GgufError::NotGguf { found: magic });
    }
    match cursor.u32().map_err(|fault| fault.while_reading("the version"))? {
        version @ (2 | 3) => Ok(version),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => Err(GgufError::BigEndian),
        found => Err(GgufError::UnsupportedVersion { found }),
    }
}

fn read_count(
    cursor: &mut Cursor<'_>,
    what: &'static str,
    limit: u64,
    min_bytes: u64,
) -> Result<usize, GgufError> {
    let found = cursor.u64().map_err(|fault| fault.while_reading(format!("the number of {what}")))?;
    if found > limit {
        return Err(GgufError::TooMany { what, found, limit });
    }
    check_count(what, found, min_bytes, cursor)?;
    Ok(usize::try_from(found).expect("the limit fits"))
}

fn check_count(what: &str, n: u64, min_bytes: u64, cursor: &Cursor<'_>) -> Result<(), GgufError> {
    let (needed, remaining) = (n * min_bytes, cursor.remaining() as u64);
    if needed > remaining {
        return Err(GgufError::Truncated { reading: format!("the list of {what}"), needed, remaining });
    }
    Ok(())
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<(String, GgufValue), GgufError> {
    let key = cursor.string().map_err(|fault| fault.while_reading("a metadata key"))?;
    let fault = |fault: ReadFault| fault.while_reading(format!("metadata key {:?}", shorten(&key)));
    let value_type = cursor.u32().map_err(fault)?;
    let value = match value_type {
        8 => GgufValue::String(cursor.string().map_err(fault)?),
        9 => {
            let element_type = cursor.u32().map_err(fault)?;
            let n = cursor.u64().map_err(fault)?;
            GgufValue::Array(read_array(cursor, &key, element_type, n)?)
        }
        // A scalar is read as an array of one.
        scalar => match read_array(cursor, &key, scalar, 1)? {
            GgufArray::U8(v) => GgufValue::U8(v[0]),
            GgufArray::I8(v) => GgufValue::I8(v[0]),
            GgufArray::U16(v) => GgufValue::U16(v[0]),
            GgufArray::I16(v) => GgufValue::I16(v[0]),
            GgufArray::U32(v) => GgufValue::U32(v[0]),
            GgufArray::I32(v) => GgufValue::I32(v[0]),
            GgufArray::F32(v) => GgufValue::F32(v[0]),
            GgufArray::Bool(v) => GgufValue::Bool(v[0]),
            GgufArray::U64(v) => GgufValue::U64(v[0]),
            GgufArray::I64(v) => GgufValue::I64(v[0]),
            GgufArray::F64(v) => GgufValue::F64(v[0]),
            GgufArray::Strings(_) => unreachable!("value type 8 is read above"),
        },
    };
    Ok((key, value))
}

/// `n` values of type `element_type` (the numbers are the format's).
fn read_array(cursor: &mut Cursor<'_>, key: &str, element_type: u32, n: u64) -> Result<GgufArray, GgufError> {
    let fault = |fault: ReadFault| fault.while_reading(format!("metadata key {:?}", shorten(key)));
    macro_rules! numbers {
        ($type:ty) => {{
            const WIDTH: usize = size_of::<$type>();
            let (chunks, _) = cursor.elements(n, WIDTH).map_err(fault)?.as_chunks::<WIDTH>();
            chunks.iter().map(|&chunk| <$type>::from_le_bytes(chunk)).collect()
        }};
    }
    Ok(match element_type {
        0 => GgufArray::U8(numbers!(u8)),
        1 => GgufArray::I8(numbers!(i8)),
        2 => GgufArray::U16(numbers!(u16)),
        3 => GgufArray::I16(numbers!(i16)),
        4 => GgufArray::U32(numbers!(u32)),
        5 => GgufArray::I32(numbers!(i32)),
        6 => GgufArray::F32(numbers!(f32)),
        7 => GgufArray::Bool(to_bools(key, cursor.elements(n, 1).map_err(fault)?)?),
        8 => GgufArray::Strings(read_strings(cursor, n).map_err(fault)?),
        9 => return Err(GgufError::NestedArray { key: shorten(key) }),
        10 => GgufArray::U64(numbers!(u64)),
        11 => GgufArray::I64(numbers!(i64)),
        12 => GgufArray::F64(numbers!(f64)),
        found => return Err(GgufError::UnknownValueType { key: shorten(key), found }),
    })
}

fn to_bools(key: &str, bytes: &[u8]) -> Result<Vec<bool>, GgufError> {
    if let Some(&found) = bytes.iter().find(|&&byte| byte > 1) {
        return Err(GgufError::InvalidBool { key: shorten(key), found });
    }
    Ok(bytes.iter().map(|&byte| byte == 1).collect())
}

fn read_strings(cursor: &mut Cursor<'_>, n: u64) -> Result<GgufStrings, ReadFault> {
    const LENGTH_BYTES: u64 = 8;
    let remaining = cursor.remaining() as u64;
    let needed = n.saturating_mul(LENGTH_BYTES);
    if needed > remaining {
        return Err(ReadFault::Truncated { needed, remaining });
    }
    // A first pass measures, so that the second allocates once and exactly.
    let mut ahead = cursor.clone();
    let mut n_text_bytes = 0;
    for _ in 0..n {
        n_text_bytes += ahead.string_bytes()?.len();
    }
    let n = usize::try_from(n).expect("no more than the bytes of the slice");
    let mut strings = GgufStrings::with_capacity(n, n_text_bytes);
    let mut buffer = Vec::new();
    for _ in 0..n {
        strings.push(cursor.string_in(&mut buffer)?);
    }
    Ok(strings)
}

fn alignment(metadata: &GgufMetadata) -> Result<u64, GgufError> {
    match metadata.u64("general.alignment")? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment),
        Some(found) => Err(GgufError::InvalidAlignment { found }),
    }
}

fn read_tensor(cursor: &mut Cursor<'_>, alignment: u64) -> Result<GgufTensor, GgufError> {
    let name = cursor.string().map_err(|fault| fault.while_reading("a tensor's name"))?;
    let fault = |fault: ReadFault| fault.while_reading(format!("the entry of tensor {:?}", shorten(&name)));
    let tensor = || shorten(&name);
    let n_dimensions = cursor.u32().map_err(fault)?;
    if !(1..=MAX_DIMENSIONS as u32).contains(&n_dimensions) {
        return Err(GgufError::DimensionCount { tensor: tensor(), found: n_dimensions });
    }
    let mut declared = [0u64; MAX_DIMENSIONS];
    let declared = &mut declared[..n_dimensions as usize];
    for dimension in declared.iter_mut() {
        *dimension = cursor.u64().map_err(fault)?;
    }
    declared.reverse();
    let type_id = cursor.u32().map_err(fault)?;
    let offset = cursor.u64().map_err(fault)?;

    let format = format_of(type_id).map_err(|type_name| GgufError::UnsupportedTensorType {
        tensor: tensor(),
        found: type_id,
        name: type_name,
    })?;
    if declared.contains(&0) {
        return Err(GgufError::ZeroDimension { tensor: tensor(), shape: declared.to_vec() });
    }
    let overflow = || GgufError::SizeOverflow { tensor: tensor(), shape: declared.to_vec() };
    let mut dimensions = [0usize; MAX_DIMENSIONS];
    let mut n_elements = 1usize;
    for (dimension, &declared) in dimensions.iter_mut().zip(declared.iter()) {
        *dimension = usize::try_from(declared).map_err(|_| overflow())?;
        n_elements = n_elements.checked_mul(*dimension).ok_or_else(overflow)?;
    }
    let row = dimensions[declared.len() - 1];
    if !row.is_multiple_of(format.block_elements()) {
        return Err(GgufError::PartialBlock { tensor: tensor(), format, found: row });
    }
    let n_bytes = format.bytes_of(n_elements).ok_or_else(overflow)?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::MisalignedOffset { tensor: tensor(), offset, alignment });
    }
    Ok(GgufTensor {
        name,
        format,
        // A 64-bit offset that does not fit is beyond the end of any file: `check_placement` refuses it.
        offset: usize::try_from(offset).unwrap_or(usize::MAX),
        n_bytes,
        dimensions,
        n_dimensions: n_dimensions as u8,
    })
}

/// Every tensor lies inside the data, no two share a byte, no two share a name.
fn check_placement(tensors: &[GgufTensor], data_bytes: usize) -> Result<(), GgufError> {
    for tensor in tensors {
        if tensor.offset.checked_add(tensor.n_bytes).is_none_or(|end| end > data_bytes) {
            return Err(GgufError::OutOfFile {
                tensor: shorten(&tensor.name),
                offset: tensor.offset as u64,
                n_bytes: tensor.n_bytes as u64,
                data_bytes: data_bytes as u64,
            });
        }
    }
    let mut sorted: Vec<&GgufTensor> = tensors.iter().collect();
    sorted.sort_unstable_by_key(|tensor| &tensor.name);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(GgufError::DuplicateTensor { tensor: shorten(&pair[0].name) });
    }
    sorted.sort_unstable_by_key(|tensor| tensor.offset);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].offset + pair[0].n_bytes > pair[1].offset) {
        return Err(GgufError::Overlap { first: shorten(&pair[0].name), second: shorten(&pair[1].name) });
    }
    Ok(())
}

/// The format with ggml's number `type_id`, or the name of a type that is not supported.
fn format_of(type_id: u32) -> Result<Format, &'static str> {
    let known = Format::ALL.into_iter().find(|format| format.ggml_number() == Some(type_id));
    let unsupported = || UNSUPPORTED_TYPES.iter().find(|(id, _)| *id == type_id);
    known.ok_or_else(|| unsupported().map_or("unknown", |&(_, name)| name))
}

const UNSUPPORTED_TYPES: [(u32, &str); 7] =
    [(9, "Q8_1"), (15, "Q8_K"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64")];
