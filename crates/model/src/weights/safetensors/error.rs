//! What can be wrong with safetensors files and their index.

use std::path::PathBuf;

/// Why safetensors weights were refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum SafetensorsError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Changed(#[from] crate::weights::FileChanged),
    #[error("{} holds neither model.safetensors nor model.safetensors.index.json", folder.display())]
    NoWeights { folder: PathBuf },
    #[error("the file has {found} bytes, fewer than the 8 of the header's length")]
    NoHeader { found: usize },
    #[error("the header has {found} bytes; the most accepted is {limit}")]
    HeaderTooLarge { found: u64, limit: u64 },
    #[error("the header has {needed} bytes, but only {remaining} follow")]
    Truncated { needed: u64, remaining: u64 },
    #[error("the header is not JSON of the expected form: {0}")]
    HeaderJson(serde_json::Error),
    #[error("tensor {tensor:?} ends at byte {end} of the data, which has {data_bytes} bytes")]
    OutOfFile { tensor: String, end: u64, data_bytes: u64 },
    #[error("the header and the data do not fit: {0}")]
    Layout(safetensors::SafeTensorError),
    #[error("tensor {tensor:?} has element type {found}, which is not supported (F32, F16 and BF16 are)")]
    UnsupportedDtype { tensor: String, found: String },
    #[error("the index has {found} bytes; the most accepted is {limit}")]
    IndexTooLarge { found: u64, limit: u64 },
    #[error("the index is not JSON of the expected form: {0}")]
    IndexJson(serde_json::Error),
    #[error(
        "the index places tensor {tensor:?} in {shard:?}, which is not the plain name of a .safetensors file"
    )]
    ShardName { tensor: String, shard: String },
    #[error("the index places tensor {tensor:?} in {shard:?}, which does not have it")]
    MissingFromShard { tensor: String, shard: String },
    #[error("{}: {source}", path.display())]
    InFile { path: PathBuf, source: Box<SafetensorsError> },
}

impl SafetensorsError {
    /// The same, naming the file.
    pub(super) fn in_file(self, path: &std::path::Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}
