//! Writes small GGUF files for tests, invalid ones too, since it does not check them.

use throng_kernels::quant::Format;

use super::{GgufArray, GgufValue};

/// A tensor to write.
#[derive(Debug, Clone)]
pub struct TensorToWrite<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Dimensions, slowest first.
    pub shape: &'a [usize],
    /// Encoding of the elements.
    pub format: Format,
    /// The bytes of all elements.
    pub data: &'a [u8],
}

/// A whole file of `version`, data aligned to `general.alignment` where `metadata` has it, else to 32.
pub fn write(version: u32, metadata: &[(&str, GgufValue)], tensors: &[TensorToWrite<'_>]) -> Vec<u8> {
    let alignment = metadata
        .iter()
        .find(|(key, _)| *key == "general.alignment")
        .and_then(|(_, value)| value.as_u64())
        .map_or(32, |alignment| alignment.max(1) as usize);
    let mut header = HeaderWriter::new(version, tensors.len() as u64, metadata.len() as u64);
    for (key, value) in metadata {
        header.entry(key, value);
    }
    let mut offset = 0;
    for tensor in tensors {
        let fastest_first: Vec<u64> = tensor.shape.iter().rev().map(|&d| d as u64).collect();
        header.tensor(tensor.name, &fastest_first, type_id(tensor.format), offset as u64);
        offset = (offset + tensor.data.len()).next_multiple_of(alignment);
    }
    let mut file = header.into_bytes();
    for tensor in tensors {
        file.resize(file.len().next_multiple_of(alignment), 0);
        file.extend_from_slice(tensor.data);
    }
    file
}

/// Number of `format` in ggml.
pub fn type_id(format: Format) -> u32 {
    format.ggml_number().expect("a format of GGUF files")
}

/// Writes a header piece by piece; pieces may be invalid.
#[derive(Debug)]
pub struct HeaderWriter {
    bytes: Vec<u8>,
}

impl HeaderWriter {
    /// Begins with the magic number, the version and the declared counts.
    pub fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(n_tensors.to_le_bytes());
        bytes.extend(n_keys.to_le_bytes());
        Self { bytes }
    }

    /// Adds a key and its value.
    pub fn entry(&mut self, key: &str, value: &GgufValue) {
        self.string(key.as_bytes());
        match value {
            GgufValue::U8(v) => self.scalar(0, &v.to_le_bytes()),
            GgufValue::I8(v) => self.scalar(1, &v.to_le_bytes()),
            GgufValue::U16(v) => self.scalar(2, &v.to_le_bytes()),
            GgufValue::I16(v) => self.scalar(3, &v.to_le_bytes()),
            GgufValue::U32(v) => self.scalar(4, &v.to_le_bytes()),
            GgufValue::I32(v) => self.scalar(5, &v.to_le_bytes()),
            GgufValue::F32(v) => self.scalar(6, &v.to_le_bytes()),
            GgufValue::Bool(v) => self.scalar(7, &[u8::from(*v)]),
            GgufValue::String(v) => {
                self.raw(&8u32.to_le_bytes());
                self.string(v.as_bytes());
            }
            GgufValue::Array(array) => {
                self.raw(&9u32.to_le_bytes());
                self.array(array);
            }
            GgufValue::U64(v) => self.scalar(10, &v.to_le_bytes()),
            GgufValue::I64(v) => self.scalar(11, &v.to_le_bytes()),
            GgufValue::F64(v) => self.scalar(12, &v.to_le_bytes()),
        }
    }

    fn array(&mut self, array: &GgufArray) {
        macro_rules! numbers {
            ($id:literal, $values:expr) => {{
                self.raw(&u32::to_le_bytes($id));
                self.raw(&($values.len() as u64).to_le_bytes());
                $values.iter().for_each(|v| self.raw(&v.to_le_bytes()));
            }};
        }
        match array {
            GgufArray::U8(v) => numbers!(0, v),
            GgufArray::I8(v) => numbers!(1, v),
            GgufArray::U16(v) => numbers!(2, v),
            GgufArray::I16(v) => numbers!(3, v),
            GgufArray::U32(v) => numbers!(4, v),
            GgufArray::I32(v) => numbers!(5, v),
            GgufArray::F32(v) => numbers!(6, v),
            GgufArray::Bool(v) => {
                self.raw(&7u32.to_le_bytes());
                self.raw(&(v.len() as u64).to_le_bytes());
                v.iter().for_each(|v| self.raw(&[u8::from(*v)]));
            }
            GgufArray::Strings(v) => {
                self.raw(&8u32.to_le_bytes());
                self.raw(&(v.len() as u64).to_le_bytes());
                v.iter().for_each(|v| self.string(v.as_bytes()));
            }
            GgufArray::U64(v) => numbers!(10, v),
            GgufArray::I64(v) => numbers!(11, v),
            GgufArray::F64(v) => numbers!(12, v),
        }
    }

    /// Adds a tensor's entry; dimensions fastest first, as the file has them.
    pub fn tensor(&mut self, name: &str, fastest_first: &[u64], type_id: u32, offset: u64) {
        self.string(name.as_bytes());
        self.raw(&(fastest_first.len() as u32).to_le_bytes());
        fastest_first.iter().for_each(|d| self.raw(&d.to_le_bytes()));
        self.raw(&type_id.to_le_bytes());
        self.raw(&offset.to_le_bytes());
    }

    /// Adds a length and bytes, which need not be UTF-8.
    pub fn string(&mut self, bytes: &[u8]) {
        self.raw(&(bytes.len() as u64).to_le_bytes());
        self.raw(bytes);
    }

    /// Adds bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The header without padding.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn scalar(&mut self, type_id: u32, bytes: &[u8]) {
        self.raw(&type_id.to_le_bytes());
        self.raw(bytes);
    }
}
