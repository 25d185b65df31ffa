//! Quantized weights kept in a file, so that the next start need not quantize: the file's name, the model
//! that it belongs to, and its reading. A file with any fault is treated as absent. Does not know how weights
//! are quantized and packed.
//!
//! The file is the packed matrices one after another, a header in JSON, and an end of 32 bytes: magic number,
//! length and digest of the header. The header identifies the model of the weights and has a digest of every
//! section of [`SECTION`] bytes. Digests detect damage, not manipulation by someone who may write to the
//! folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use throng_kernels::quant::{Format, QUANTIZER_VERSION};
use throng_os::mapped_file::MappedFile;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use super::Quantization;
use crate::arch::Architecture;
use crate::backend::Backend;
use throng_checkpoint::{TensorSource, TensorView};

/// Number of bytes that one digest covers.
pub(super) const SECTION: usize = 4 << 20;
/// Magic number of the file; its last byte is the version of the format.
pub(super) const MAGIC: [u8; 8] = *b"throngQ\x01";
/// Magic number, length of the header, its digest.
pub(super) const END_BYTES: usize = 8 + 8 + 16;
/// Bytes of each tensor that are part of the digest.
const SAMPLE: usize = 4096;

/// Place of a model's quantized weights, and the model's identity.
#[derive(Debug, Clone)]
pub(crate) struct CachePlace {
    pub(super) path: PathBuf,
    /// A digest of all inputs of the weights, and the layout in which they are packed.
    pub(super) identity: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) identity: String,
    pub(super) matrices: Vec<KeptMatrix>,
}

/// A matrix, in the order in which matrices are in the file and are loaded.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptMatrix {
    pub(super) name: String,
    pub(super) format: String,
    pub(super) shape: Vec<usize>,
    pub(super) n_bytes: usize,
    /// Digest of each section, in hexadecimal.
    pub(super) digests: Vec<String>,
}

impl CachePlace {
    /// One file in `folder` for the model at `path` and a format; `None` when the tensors are not in files.
    ///
    /// A file of weights is identified by its length, its modification times, the names and shapes of its
    /// tensors and a page of each: reading all of it would take longer than quantizing it.
    pub(crate) fn new(
        folder: &Path,
        path: &Path,
        name: &str,
        to: Quantization,
        architecture: &Architecture,
        tensors: &dyn TensorSource,
    ) -> Option<Self> {
        let mut digest = Xxh3::new();
        let mut add = |bytes: &[u8]| {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        add(format!("{QUANTIZER_VERSION} {to} {:?}", architecture.config).as_bytes());
        for stamp in tensors.stamps()? {
            add(format!("{stamp:?}").as_bytes());
        }
        for tensor in tensors.names().into_iter().filter_map(|name| tensors.tensor(name)) {
            add(format!("{} {} {:?}", tensor.name, tensor.format.name(), tensor.shape).as_bytes());
            let middle = tensor.data.len() / 2;
            add(&tensor.data[middle..tensor.data.len().min(middle + SAMPLE)]);
        }
        for encoding in tensors.encodings() {
            add(format!("{encoding:?}").as_bytes());
        }
        for name in tensors.encoded_names() {
            for (end, part) in tensors.encoded_parts(&name) {
                add(format!("{name} {end} {} {:?}", part.dtype, part.shape).as_bytes());
                let middle = part.data.len() / 2;
                add(&part.data[middle..part.data.len().min(middle + SAMPLE)]);
            }
        }
        let identity = format!("{:032x}", digest.digest128());
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let place = xxh3_64(place.as_os_str().as_encoded_bytes());
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
        let name: String = name.chars().filter(is_plain).take(100).collect();
        Some(Self { path: folder.join(format!("{name}-{to}-{place:016x}.throng")), identity })
    }

    /// The place for weights in this layout.
    pub(super) fn in_layout(&self, layout_id: &str) -> Self {
        Self { path: self.path.clone(), identity: format!("{}, {layout_id}", self.identity) }
    }
}

/// A file whose every byte was checked.
pub(super) struct Cache {
    file: MappedFile,
    matrices: std::vec::IntoIter<KeptMatrix>,
    /// Offset of the next matrix.
    at: usize,
}

impl Cache {
    /// Opens and checks the file, on the backend's threads.
    ///
    /// # Errors
    /// With the reason why there is no usable file, in words; empty if there is no file at all.
    pub(super) fn open<B: Backend>(place: &CachePlace, backend: &B) -> Result<Self, String> {
        let file = match MappedFile::open(&place.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(String::new()),
            Err(error) => return Err(error.to_string()),
        };
        let header = header(&file)?;
        if header.identity != place.identity {
            return Err("it is of another version of the model or of Throng".to_owned());
        }
        let payload = &file[..file.len() - END_BYTES - header_bytes(&file)];
        check(&header, payload, backend)?;
        Ok(Self { matrices: header.matrices.into_iter(), at: 0, file })
    }

    /// The packed bytes of the parts of the next matrix; `None` when the next one in the file is another.
    pub(super) fn next(&mut self, parts: &[TensorView<'_>], formats: &[Format]) -> Option<Vec<&[u8]>> {
        let mut at = self.at;
        let mut found = Vec::with_capacity(parts.len());
        if self.matrices.len() < parts.len() {
            return None;
        }
        for ((part, format), kept) in parts.iter().zip(formats).zip(self.matrices.by_ref()) {
            if kept.name != part.name || kept.format != format.name() || kept.shape != part.shape {
                return None;
            }
            found.push(at..at + kept.n_bytes);
            at += kept.n_bytes;
        }
        self.at = at;
        Some(found.into_iter().map(|range| &self.file[range]).collect())
    }

    /// Whether the file is unchanged since it was checked.
    pub(super) fn is_unchanged(&self) -> bool {
        self.file.check_unchanged().is_ok()
    }

    /// Releases the memory of the returned bytes, once they have been copied.
    pub(super) fn release(&self) {
        self.file.release(0..self.at);
    }
}

fn header_bytes(file: &[u8]) -> usize {
    let end = &file[file.len() - END_BYTES..];
    let n_bytes = u64::from_le_bytes(std::array::from_fn(|i| end[8 + i]));
    usize::try_from(n_bytes).unwrap_or(usize::MAX)
}

fn header(file: &[u8]) -> Result<Header, String> {
    if file.len() < END_BYTES {
        return Err("it is cut short".to_owned());
    }
    let (before, end) = file.split_at(file.len() - END_BYTES);
    if end[..8] != MAGIC {
        return Err("it is cut short, damaged or of another version of Throng".to_owned());
    }
    let start = before.len().checked_sub(header_bytes(file)).ok_or("its end is damaged")?;
    let json = &before[start..];
    if xxh3_128(json).to_le_bytes() != end[16..] {
        return Err("its header is damaged".to_owned());
    }
    serde_json::from_slice(json).map_err(|error| format!("its header is not readable: {error}"))
}

/// Compares the digests of all sections.
fn check<B: Backend>(header: &Header, payload: &[u8], backend: &B) -> Result<(), String> {
    let mut sections = Vec::new();
    let mut rest = payload;
    for kept in &header.matrices {
        let bytes = rest.split_off(..kept.n_bytes).ok_or("it is cut short")?;
        if kept.digests.len() != bytes.len().div_ceil(SECTION) {
            return Err("its header is inconsistent".to_owned());
        }
        sections.extend(bytes.chunks(SECTION).zip(&kept.digests));
    }
    if !rest.is_empty() {
        return Err("it has more bytes than it should".to_owned());
    }
    let (next, damaged) = (AtomicUsize::new(0), AtomicBool::new(false));
    backend.host_threads().run(&|_| {
        while let Some((bytes, want)) = sections.get(next.fetch_add(1, Ordering::Relaxed)) {
            if digest(bytes) != **want {
                damaged.store(true, Ordering::Relaxed);
            }
        }
    });
    if damaged.into_inner() { Err("it is damaged".to_owned()) } else { Ok(()) }
}

pub(super) fn digest(section: &[u8]) -> String {
    format!("{:032x}", xxh3_128(section))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference_backend::ReferenceBackend;

    fn file() -> Vec<u8> {
        let mut file: Vec<u8> = (0..200).collect();
        let kept = |name: &str, bytes: &[u8]| KeptMatrix {
            name: name.to_owned(),
            format: "Q8_0".to_owned(),
            shape: vec![2, 32],
            n_bytes: bytes.len(),
            digests: vec![digest(bytes)],
        };
        let matrices = vec![kept("a", &file[..120]), kept("b", &file[120..])];
        let json = serde_json::to_vec(&Header { identity: "it".to_owned(), matrices }).unwrap();
        file.extend_from_slice(&json);
        file.extend_from_slice(&MAGIC);
        file.extend_from_slice(&(json.len() as u64).to_le_bytes());
        file.extend_from_slice(&xxh3_128(&json).to_le_bytes());
        file
    }

    fn read(file: &[u8]) -> Result<(), String> {
        let header = header(file)?;
        check(&header, &file[..file.len() - END_BYTES - header_bytes(file)], &ReferenceBackend)
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let whole = file();
        assert_eq!(read(&whole), Ok(()));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).is_err(), "bit {bit} of byte {at}");
            }
            assert!(read(&whole[..at]).is_err(), "cut to {at} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(read(&longer).is_err());
        let more_payload = [&[0], &whole[..]].concat();
        assert!(read(&more_payload).is_err());
    }
}
