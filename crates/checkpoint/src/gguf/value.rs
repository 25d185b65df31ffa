//! GGUF metadata in memory: a typed map in the file's order. Does not know the meaning of keys.

use super::error::{GgufError, shorten};

/// One metadata value, in the type the file gives it.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the types")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(GgufArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of one type, packed: a vocabulary of a million tokens is two allocations.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the types")]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(GgufStrings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Many strings in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GgufStrings {
    text: String,
    ends: Vec<usize>,
}

impl GgufStrings {
    /// An empty list with capacity for `n` strings of `n_bytes` together.
    pub(super) fn with_capacity(n: usize, n_bytes: usize) -> Self {
        Self { text: String::with_capacity(n_bytes), ends: Vec::with_capacity(n) }
    }

    /// Adds one at the end.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// The string at `idx`.
    pub fn get(&self, idx: usize) -> Option<&str> {
        let end = *self.ends.get(idx)?;
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] };
        Some(&self.text[start..end])
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|idx| self.get(idx).expect("idx is below the length"))
    }
}

impl<'a> FromIterator<&'a str> for GgufStrings {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Self {
        let mut packed = Self::default();
        strings.into_iter().for_each(|s| packed.push(s));
        packed
    }
}

impl GgufArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Strings(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as `u64` when they are integers and none is negative.
    pub fn to_u64s(&self) -> Option<Vec<u64>> {
        match self {
            Self::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Self::U16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Self::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Self::U64(v) => Some(v.clone()),
            Self::I8(v) => v.iter().map(|&x| u64::try_from(x).ok()).collect(),
            Self::I16(v) => v.iter().map(|&x| u64::try_from(x).ok()).collect(),
            Self::I32(v) => v.iter().map(|&x| u64::try_from(x).ok()).collect(),
            Self::I64(v) => v.iter().map(|&x| u64::try_from(x).ok()).collect(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Strings(_) => None,
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::Strings(_) => "string",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }
}

impl GgufValue {
    /// The value as an unsigned integer, whatever integer type it has, unless it is negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// The value as a floating-point number, if it has such a type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value as text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value as an array.
    pub fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// The type and, if it is short, the value, for error messages.
    fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
            Self::String(text) => format!("the string {:?}", shorten(text)),
            scalar => format!("{scalar:?}"),
        }
    }
}

/// The metadata of a GGUF file, in the file's order, looked up by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufMetadata {
    entries: Vec<(String, GgufValue)>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl GgufMetadata {
    /// Creates metadata from entries in the file's order.
    pub(super) fn new(entries: Vec<(String, GgufValue)>) -> Result<Self, GgufError> {
        let n = u32::try_from(entries.len()).expect("the number of keys is limited");
        let mut by_key: Vec<u32> = (0..n).collect();
        by_key.sort_unstable_by_key(|&i| &entries[i as usize].0);
        for pair in by_key.windows(2) {
            let key = &entries[pair[0] as usize].0;
            if *key == entries[pair[1] as usize].0 {
                return Err(GgufError::DuplicateKey { key: shorten(key) });
            }
        }
        Ok(Self { entries, by_key })
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        let found = self.by_key.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[found] as usize].1)
    }

    /// Keys and values in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &GgufValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The non-negative integer under `key`, of any width; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "a non-negative integer", GgufValue::as_u64)
    }

    /// The floating-point number under `key`; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a floating-point number", GgufValue::as_f64)
    }

    /// The boolean under `key`; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", GgufValue::as_bool)
    }

    /// The string under `key`; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", GgufValue::as_str)
    }

    /// The array under `key`; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn array(&self, key: &str) -> Result<Option<&GgufArray>, GgufError> {
        self.typed(key, "an array", GgufValue::as_array)
    }

    /// The array of strings under `key`; `None` if absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the key has a value of another type.
    pub fn strings(&self, key: &str) -> Result<Option<&GgufStrings>, GgufError> {
        self.typed(key, "an array of strings", |value| match value {
            GgufValue::Array(GgufArray::Strings(strings)) => Some(strings),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(GgufError::WrongType { key: shorten(key), expected, found: value.describe() }),
        }
    }
}
