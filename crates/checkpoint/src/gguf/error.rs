//! Errors of GGUF files: every error names the tensor or key, the expected and the found value.

use std::path::PathBuf;

use throng_kernels::quant::Format;

/// Reason why a GGUF file was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum GgufError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Changed(#[from] crate::FileChanged),
    #[error("{}: {source}{}", path.display(), source.advice())]
    InFile { path: PathBuf, source: Box<GgufError> },
    #[error("this is no GGUF file: {0}")]
    NoModel(&'static str),
    #[error("not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf { found: [u8; 4] },
    #[error("the file is big-endian GGUF; only little-endian files are supported")]
    BigEndian,
    #[error("GGUF version {found} is not supported (2 and 3 are)")]
    UnsupportedVersion { found: u32 },
    #[error("the file ends inside {reading}: {needed} bytes needed, {remaining} left")]
    Truncated { reading: String, needed: u64, remaining: u64 },
    #[error("the file declares {found} {what}; the most accepted is {limit}")]
    TooMany { what: &'static str, found: u64, limit: u64 },
    #[error("{reading} is not UTF-8")]
    InvalidUtf8 { reading: String },
    #[error("metadata key {key:?} has unknown value type {found}")]
    UnknownValueType { key: String, found: u32 },
    #[error("metadata key {key:?} holds an array of arrays, which is not supported")]
    NestedArray { key: String },
    #[error("metadata key {key:?} holds a boolean with value {found} (expected 0 or 1)")]
    InvalidBool { key: String, found: u8 },
    #[error("metadata key {key:?} appears twice")]
    DuplicateKey { key: String },
    #[error("metadata key {key:?} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("general.alignment is {found}, expected a power of two")]
    InvalidAlignment { found: u64 },
    #[error("tensor {tensor:?} appears twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has {found} dimensions (expected 1 to 4)")]
    DimensionCount { tensor: String, found: u32 },
    #[error("tensor {tensor:?} has a dimension of 0: {shape:?}")]
    ZeroDimension { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor:?}: the size of shape {shape:?} overflows")]
    SizeOverflow { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor:?} has element type {found} ({name}), which is not supported")]
    UnsupportedTensorType { tensor: String, found: u32, name: &'static str },
    #[error("tensor {tensor:?}: rows of {found} elements are not whole blocks of {} ({})", format.block_elements(), format.name())]
    PartialBlock { tensor: String, format: Format, found: usize },
    #[error(
        "tensor {tensor:?} begins at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    MisalignedOffset { tensor: String, offset: u64, alignment: u64 },
    #[error(
        "tensor {tensor:?} needs {n_bytes} bytes at offset {offset} of the data, which has {data_bytes} bytes"
    )]
    OutOfFile { tensor: String, offset: u64, n_bytes: u64, data_bytes: u64 },
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap { first: String, second: String },
    #[error(
        "{} is one of {n_files} parts, but is not named like \"name-00001-of-{n_files:05}.gguf\"",
        path.display()
    )]
    SplitName { path: PathBuf, n_files: u64 },
    #[error("{}: {what} is {found}, expected {expected}", path.display())]
    SplitMismatch { path: PathBuf, what: &'static str, expected: u64, found: u64 },
}

impl GgufError {
    /// Advice about a file that is not whole.
    fn advice(&self) -> &'static str {
        match self {
            Self::NotGguf { .. } | Self::Truncated { .. } | Self::OutOfFile { .. } => crate::BRING_AGAIN,
            _ => "",
        }
    }
}

/// A name, shortened for an error: a file may declare names of megabytes.
pub(super) fn shorten(name: &str) -> String {
    const SHOWN_CHARS: usize = 100;
    match name.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
