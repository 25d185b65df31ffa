//! Errors of safetensors files and their index.

use std::path::PathBuf;

/// Reason why safetensors weights were refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum SafetensorsError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Changed(#[from] crate::FileChanged),
    #[error(
        "{} holds neither model.safetensors nor model.safetensors.index.json{}",
        folder.display(),
        other_weights(folder)
    )]
    NoWeights { folder: PathBuf },
    #[error(
        "{}: {index} names this file, and it is not there: bring it again (`throng pull`, or copy the folder)",
        path.display()
    )]
    MissingShard { index: &'static str, path: PathBuf },
    #[error("this is no safetensors file: {0}")]
    NoModel(&'static str),
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
    #[error("{}: {source}{}", path.display(), source.advice())]
    InFile { path: PathBuf, source: Box<SafetensorsError> },
}

impl SafetensorsError {
    /// Advice about a file that is not whole.
    fn advice(&self) -> &'static str {
        match self {
            Self::NoHeader { .. }
            | Self::HeaderTooLarge { .. }
            | Self::Truncated { .. }
            | Self::HeaderJson(_)
            | Self::OutOfFile { .. }
            | Self::Layout(_)
            | Self::IndexJson(_) => crate::BRING_AGAIN,
            _ => "",
        }
    }

    /// Adds the name of the file to the error.
    pub(super) fn in_file(self, path: &std::path::Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

/// Names the other weight files of a folder without safetensors, with advice.
fn other_weights(folder: &std::path::Path) -> &'static str {
    let has = |name: &str| folder.join(name).exists();
    if ["pytorch_model.bin", "pytorch_model.bin.index.json"].into_iter().any(has) {
        return " (pytorch_model.bin is not read: convert it, or take a revision with safetensors)";
    }
    ""
}
