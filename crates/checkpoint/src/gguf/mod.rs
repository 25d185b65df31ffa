//! GGUF files, versions 2 and 3, whole or split: an own zero-copy reader. Every offset and size is checked
//! against the file's length before it is used. Does not know the meaning of tensors and keys.

mod cursor;
mod error;
mod header;
mod split;
mod value;
pub mod writer;

use std::path::Path;

pub use error::GgufError;
pub use header::{GgufHeader, GgufTensor};
pub use value::{GgufArray, GgufMetadata, GgufStrings, GgufValue};

use throng_os::mapped_file::FileStamp;

use crate::file_bytes::FileBytes;
use crate::{FileChanged, TensorSource, TensorView, no_model};

/// A GGUF model: the metadata of its first file and the tensors of all its files.
#[derive(Debug)]
pub struct Gguf {
    files: Vec<GgufFile>,
    /// Place of each tensor: file and place in that file's list; sorted by name.
    by_name: Vec<(u32, u32)>,
}

#[derive(Debug)]
struct GgufFile {
    header: GgufHeader,
    bytes: FileBytes,
}

impl GgufFile {
    fn tensor_bytes(&self, tensor: &GgufTensor) -> &[u8] {
        // The header's check placed every tensor inside the file.
        let start = self.header.data_start + tensor.offset;
        &self.bytes[start..start + tensor.n_bytes]
    }
}

impl Gguf {
    /// Maps the file at `path`, and the other parts when it is one part of a split model.
    ///
    /// # Errors
    /// When a file cannot be read, is not a consistent GGUF file, or a part is missing.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let first = GgufFile::open(path)?;
        match split::other_parts(path, &first.header)? {
            None => Self::from_files(vec![first]),
            Some(parts) => Self::from_files(split::open_parts(path, first, &parts)?),
        }
    }

    /// Reads a whole model from memory; for tests and fuzzing, since it copies `bytes`. A part of a split
    /// model is read alone.
    ///
    /// # Errors
    /// When `bytes` are not a consistent GGUF file.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let header = GgufHeader::parse(bytes)?;
        Self::from_files(vec![GgufFile { header, bytes: FileBytes::Owned(bytes.to_vec()) }])
    }

    fn from_files(files: Vec<GgufFile>) -> Result<Self, GgufError> {
        let n_tensors = files.iter().map(|file| file.header.tensors.len()).sum();
        let mut by_name = Vec::with_capacity(n_tensors);
        for (file_idx, file) in files.iter().enumerate() {
            by_name.extend((0..file.header.tensors.len()).map(|idx| (file_idx as u32, idx as u32)));
        }
        let mut gguf = Self { files, by_name };
        let mut by_name = std::mem::take(&mut gguf.by_name);
        by_name.sort_unstable_by_key(|&place| &gguf.at(place).1.name);
        gguf.by_name = by_name;
        let name = |place: &(u32, u32)| gguf.at(*place).1.name.as_str();
        if let Some(pair) = gguf.by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(GgufError::DuplicateTensor { tensor: error::shorten(name(&pair[0])) });
        }
        Ok(gguf)
    }

    /// The metadata (of the first file, when the model is split).
    pub fn metadata(&self) -> &GgufMetadata {
        &self.files[0].header.metadata
    }

    /// The headers of the model's files, in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = &GgufHeader> {
        self.files.iter().map(|file| &file.header)
    }

    /// Bytes of all files together.
    pub fn n_file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes.len() as u64).sum()
    }

    fn at(&self, (file_idx, tensor_idx): (u32, u32)) -> (&GgufFile, &GgufTensor) {
        let file = &self.files[file_idx as usize];
        (file, &file.header.tensors[tensor_idx as usize])
    }
}

impl GgufFile {
    fn open(path: &Path) -> Result<Self, GgufError> {
        let bytes = FileBytes::map(path).map_err(|source| GgufError::Io { path: path.to_owned(), source })?;
        let header = match no_model(&bytes) {
            Some(found) => Err(GgufError::NoModel(found)),
            None => GgufHeader::parse(&bytes),
        };
        bytes.check_unchanged()?;
        let in_file = |error| GgufError::InFile { path: path.to_owned(), source: Box::new(error) };
        Ok(Self { header: header.map_err(in_file)?, bytes })
    }
}

impl TensorSource for Gguf {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let found = self.by_name.binary_search_by(|&place| self.at(place).1.name.as_str().cmp(name)).ok()?;
        let (file, tensor) = self.at(self.by_name[found]);
        Some(TensorView {
            name: &tensor.name,
            shape: tensor.shape(),
            format: tensor.format,
            data: file.tensor_bytes(tensor),
        })
    }

    fn stamps(&self) -> Option<Vec<FileStamp>> {
        self.files.iter().map(|file| file.bytes.stamp()).collect()
    }

    fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.files.iter().try_for_each(|file| file.bytes.check_unchanged())
    }

    fn release(&self, name: &str) {
        let found = self.by_name.binary_search_by(|&place| self.at(place).1.name.as_str().cmp(name));
        if let Ok(found) = found {
            let (file, tensor) = self.at(self.by_name[found]);
            let start = file.header.data_start + tensor.offset;
            file.bytes.release(start..start + tensor.n_bytes);
        }
    }

    fn names(&self) -> Vec<&str> {
        self.by_name.iter().map(|&place| self.at(place).1.name.as_str()).collect()
    }
}
