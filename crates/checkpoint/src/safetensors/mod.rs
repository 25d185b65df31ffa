//! Folders of safetensors weights: one file, or shards with an index. Does not know what the tensors mean.

mod error;
mod header;

use std::path::Path;

pub use error::SafetensorsError;
pub use header::{SafetensorsEntry, parse_header, parse_index};
pub use safetensors::Dtype;

use throng_os::mapped_file::FileStamp;

use crate::file_bytes::FileBytes;
use crate::{ByteTensor, FileChanged, TensorSource, TensorView};

/// Name of the file of a folder whose weights are in one.
pub const SINGLE_FILE: &str = "model.safetensors";
/// Name of the file that lists the shards of a folder.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// A stored tensor of any element type.
#[derive(Debug, Clone, Copy)]
pub struct RawTensor<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Dimensions, slowest first.
    pub shape: &'a [usize],
    /// Encoding of the elements.
    pub dtype: Dtype,
    /// Exactly the bytes of all elements, row after row.
    pub data: &'a [u8],
}

/// The weights of a model folder, mapped.
#[derive(Debug)]
pub struct SafetensorsFolder {
    files: Vec<FileBytes>,
    /// Sorted by name; the first is the index of the file.
    tensors: Vec<(usize, SafetensorsEntry)>,
}

impl SafetensorsFolder {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names. Tensors that are
    /// not F32, F16 or BF16 are read with [`Self::raw`].
    ///
    /// # Errors
    /// When a file cannot be read, is inconsistent, or lacks a tensor that the index names.
    pub fn open(folder: &Path) -> Result<Self, SafetensorsError> {
        let index_path = folder.join(INDEX_FILE);
        if index_path.exists() {
            return Self::open_shards(folder, &index_path);
        }
        let path = folder.join(SINGLE_FILE);
        if !path.exists() {
            return Err(SafetensorsError::NoWeights { folder: folder.to_owned() });
        }
        let (file, entries) = open_file(&path)?;
        Ok(Self::of_one(file, entries))
    }

    /// Maps one file of any name.
    ///
    /// # Errors
    /// When it cannot be read, is inconsistent, or has tensors of other types than F32, F16, BF16.
    pub fn open_one(path: &Path) -> Result<Self, SafetensorsError> {
        let (file, entries) = open_file(path)?;
        Self::of_one(file, entries).checked_floats()
    }

    fn checked_floats(self) -> Result<Self, SafetensorsError> {
        let is_read = |entry: &SafetensorsEntry| entry.format().is_some() || entry.dtype == Dtype::U8;
        match self.tensors.iter().find(|(_, entry)| !is_read(entry)) {
            None => Ok(self),
            Some((_, entry)) => Err(SafetensorsError::UnsupportedDtype {
                tensor: entry.name.clone(),
                found: entry.dtype.to_string(),
            }),
        }
    }

    fn entry(&self, name: &str) -> Option<&(usize, SafetensorsEntry)> {
        let found = self.tensors.binary_search_by(|(_, entry)| entry.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[found])
    }

    /// The tensor of that name with its element type, of any type.
    pub fn raw(&self, name: &str) -> Option<RawTensor<'_>> {
        let (file_idx, entry) = self.entry(name)?;
        let data = &self.files[*file_idx][entry.start..entry.start + entry.n_bytes];
        Some(RawTensor { name: &entry.name, shape: &entry.shape, dtype: entry.dtype, data })
    }

    /// Reads one file's content from memory; for tests and fuzzing, since it copies `bytes`.
    ///
    /// # Errors
    /// When `bytes` are not a consistent safetensors file.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let entries = parse_header(bytes)?;
        Self::of_one(FileBytes::Owned(bytes.to_vec()), entries).checked_floats()
    }

    /// Parses a file like [`Self::parse`], with tensors of any type.
    ///
    /// # Errors
    /// When `bytes` are not a consistent safetensors file.
    pub fn parse_any(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let entries = parse_header(bytes)?;
        Ok(Self::of_one(FileBytes::Owned(bytes.to_vec()), entries))
    }

    /// The names of all tensors, of any type, sorted.
    pub fn all_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(_, entry)| entry.name.as_str())
    }

    fn of_one(file: FileBytes, entries: Vec<SafetensorsEntry>) -> Self {
        Self { files: vec![file], tensors: entries.into_iter().map(|entry| (0, entry)).collect() }
    }

    fn open_shards(folder: &Path, index_path: &Path) -> Result<Self, SafetensorsError> {
        let json = FileBytes::map(index_path)
            .map_err(|source| SafetensorsError::Io { path: index_path.to_owned(), source })?;
        let places = parse_index(&json);
        json.check_unchanged()?;
        let mut places = places.map_err(|error| error.in_file(index_path))?;
        places.sort_unstable_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));

        let (mut files, mut tensors) = (Vec::new(), Vec::with_capacity(places.len()));
        for of_shard in places.chunk_by(|a, b| a.1 == b.1) {
            let shard = &of_shard[0].1;
            let path = folder.join(shard);
            if !path.exists() {
                return Err(SafetensorsError::MissingShard { index: INDEX_FILE, path });
            }
            let (file, entries) = open_file(&path)?;
            for (tensor, _) in of_shard {
                let found = entries.binary_search_by(|entry| entry.name.cmp(tensor)).map_err(|_| {
                    SafetensorsError::MissingFromShard { tensor: tensor.clone(), shard: shard.clone() }
                })?;
                tensors.push((files.len(), entries[found].clone()));
            }
            files.push(file);
        }
        tensors.sort_unstable_by(|a, b| a.1.name.cmp(&b.1.name));
        Ok(Self { files, tensors })
    }

    fn find(&self, name: &str) -> Option<(&SafetensorsEntry, &[u8])> {
        let (file_idx, entry) = self.entry(name)?;
        Some((entry, &self.files[*file_idx][entry.start..entry.start + entry.n_bytes]))
    }

    fn names_of(&self, is_wanted: impl Fn(&SafetensorsEntry) -> bool) -> Vec<&str> {
        let entries = self.tensors.iter().map(|(_, entry)| entry);
        entries.filter(|entry| is_wanted(entry)).map(|entry| entry.name.as_str()).collect()
    }

    /// Bytes of all files together.
    pub fn n_file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }
}

fn open_file(path: &Path) -> Result<(FileBytes, Vec<SafetensorsEntry>), SafetensorsError> {
    let file =
        FileBytes::map(path).map_err(|source| SafetensorsError::Io { path: path.to_owned(), source })?;
    let entries = parse_header(&file);
    file.check_unchanged()?;
    Ok((file, entries.map_err(|error| error.in_file(path))?))
}

impl TensorSource for SafetensorsFolder {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (entry, data) = self.find(name)?;
        Some(TensorView { name: &entry.name, shape: &entry.shape, format: entry.format()?, data })
    }

    fn byte_tensor(&self, name: &str) -> Option<ByteTensor<'_>> {
        let (entry, data) = self.find(name).filter(|(entry, _)| entry.dtype == Dtype::U8)?;
        Some(ByteTensor { name: &entry.name, shape: &entry.shape, data })
    }

    fn byte_names(&self) -> Vec<&str> {
        self.names_of(|entry| entry.dtype == Dtype::U8)
    }

    fn stamps(&self) -> Option<Vec<FileStamp>> {
        self.files.iter().map(|file| file.stamp()).collect()
    }

    fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.files.iter().try_for_each(FileBytes::check_unchanged)
    }

    fn release(&self, name: &str) {
        if let Some((file_idx, entry)) = self.entry(name) {
            self.files[*file_idx].release(entry.start..entry.start + entry.n_bytes);
        }
    }

    fn names(&self) -> Vec<&str> {
        self.names_of(|entry| entry.format().is_some())
    }

    fn stored_names(&self) -> Vec<&str> {
        self.all_names().collect()
    }

    fn other_type(&self, name: &str) -> Option<String> {
        let (_, entry) = self.entry(name).filter(|(_, entry)| entry.format().is_none())?;
        Some(entry.dtype.to_string())
    }
}
