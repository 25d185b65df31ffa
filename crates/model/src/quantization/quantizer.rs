//! Quantizes one matrix after the other on the backend's threads and copies it to the backend. Does not know
//! the forward pass.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use throng_kernels::Isa;
use throng_kernels::quant::{Format, quantize_rows};

use super::cache::{Cache, CachePlace};
use super::cache_writer::CacheWriter;
use super::{CacheUse, QuantizePlan, QuantizeReport};
use crate::backend::{Backend, BackendError, MatrixRole};
use throng_checkpoint::TensorView;

/// Number of elements that a thread takes at a time.
const SHARE: usize = 1 << 16;
/// Larger buffers of blocks are given back after each matrix.
const KEPT_BYTES: usize = 64 << 20;

/// Quantizes the matrices of a model while it is loaded.
pub(crate) struct Quantizer {
    plan: QuantizePlan,
    kept: Kept,
    report: QuantizeReport,
    started: Instant,
    /// The blocks of each part of the current matrix; buffers are kept from matrix to matrix, and may be
    /// longer.
    blocks: Vec<Vec<u8>>,
}

/// State of the file on disk.
enum Kept {
    Nothing,
    Reading(Cache),
    Writing(CacheWriter),
}

impl Quantizer {
    /// Reads the weights that are kept at `place`, or creates the file.
    pub(crate) fn new<B: Backend>(plan: QuantizePlan, place: Option<&CachePlace>, backend: &B) -> Self {
        let started = Instant::now();
        let place = place.zip(backend.packed_weights());
        let place = place.map(|(place, packed)| place.in_layout(&packed.layout_id()));
        let kept = place.as_ref().map_or(Kept::Nothing, |place| Kept::at(place, backend));
        let report = QuantizeReport {
            to: plan.to,
            stored_bytes: 0,
            formats: Vec::new(),
            n_kept: 0,
            cache: match (&kept, place.is_some()) {
                (Kept::Reading(_), _) => CacheUse::Read,
                (Kept::Nothing, false) => CacheUse::None,
                // Until the file is whole.
                (Kept::Writing(_), _) | (Kept::Nothing, true) => CacheUse::Failed,
            },
            took: Default::default(),
        };
        Self { plan, kept, report, started, blocks: Vec::new() }
    }

    /// The matrix of these parts (all in one role and with equally long rows), quantized by the plan.
    pub(crate) fn matrix<B: Backend>(
        &mut self,
        backend: &B,
        role: MatrixRole,
        parts: &[TensorView<'_>],
    ) -> Result<B::Matrix, BackendError> {
        let formats: Vec<Format> = parts.iter().map(|part| self.plan.format_of(part)).collect();
        self.note(parts, &formats);
        if parts.iter().zip(&formats).all(|(part, format)| part.format == *format) {
            return backend.matrix(role, parts);
        }
        if let (Kept::Reading(cache), Some(packing)) = (&mut self.kept, backend.packed_weights()) {
            if let Some(packed) = cache.next(parts, &formats) {
                let matrix = packing.matrix(role, &in_formats(parts, &formats, packed));
                if cache.is_unchanged() {
                    cache.release();
                    return matrix;
                }
            }
            // The file does not match its header, or was changed; the rest is quantized.
            self.kept = Kept::Nothing;
            self.report.cache = CacheUse::Failed;
        }
        let sizes = parts.iter().zip(&formats).map(|(part, &format)| n_bytes(part, format));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        self.quantize(backend, parts, &formats, &sizes)?;
        let blocks = self.blocks.iter().zip(sizes).map(|(blocks, n_bytes)| &blocks[..n_bytes]);
        let matrix = backend.matrix(role, &in_formats(parts, &formats, blocks))?;
        self.blocks.retain(|blocks| blocks.len() <= KEPT_BYTES);
        if let Some(packing) = backend.packed_weights() {
            self.keep(|writer| writer.add(parts, &formats, &packing.bytes(&matrix), backend));
        }
        Ok(matrix)
    }

    /// Calls `write` with the file, unless that failed before.
    fn keep(&mut self, write: impl FnOnce(&mut CacheWriter) -> io::Result<()>) {
        if let Kept::Writing(writer) = &mut self.kept
            && let Err(error) = write(writer)
        {
            warn_of(&error);
            self.kept = Kept::Nothing;
        }
    }

    /// Fills `blocks`, part by part.
    fn quantize<B: Backend>(
        &mut self,
        backend: &B,
        parts: &[TensorView<'_>],
        formats: &[Format],
        sizes: &[usize],
    ) -> Result<(), BackendError> {
        if self.blocks.len() < parts.len() {
            self.blocks.resize_with(parts.len(), Vec::new);
        }
        let mut shares = Vec::new();
        let of_parts = parts.iter().zip(formats).zip(sizes).zip(&mut self.blocks);
        for (((part, &format), &n_bytes), blocks) in of_parts {
            let more = n_bytes.saturating_sub(blocks.len());
            let no_memory = |_| BackendError::OutOfMemory { what: "quantized weights", n_bytes };
            blocks.try_reserve_exact(more).map_err(no_memory)?;
            blocks.resize(blocks.len() + more, 0);
            let cols = part.shape.last().copied().unwrap_or(0);
            let n_rows = (SHARE / cols.max(1)).max(1);
            let of_rows = |format| row_bytes(part, format).map(|row| row * n_rows);
            let stored = part.data.chunks(of_rows(part.format)?);
            let of_part = stored.zip(blocks[..n_bytes].chunks_mut(of_rows(format)?));
            shares.extend(of_part.map(|(stored, out)| (part.format, format, cols, stored, out)));
        }
        let (shares, isa) = (Mutex::new(shares.into_iter()), Isa::best());
        backend.host_threads().run(&|_| {
            loop {
                let next = shares.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((from, to, cols, stored, out)) = next else { break };
                quantize_rows(isa, from, to, cols, stored, out);
            }
        });
        Ok(())
    }

    fn note(&mut self, parts: &[TensorView<'_>], formats: &[Format]) {
        for (part, &format) in parts.iter().zip(formats) {
            if part.format == format {
                self.report.n_kept += usize::from(self.plan.has_format_for(part));
                continue;
            }
            self.report.stored_bytes += part.data.len() as u64;
            let n_bytes = n_bytes(part, format).unwrap_or(0) as u64;
            match self.report.formats.iter_mut().find(|(known, ..)| *known == format) {
                Some((_, n_matrices, total)) => (*n_matrices, *total) = (*n_matrices + 1, *total + n_bytes),
                None => self.report.formats.push((format, 1, n_bytes)),
            }
        }
    }

    /// Completes the file of kept weights and returns a report.
    pub(crate) fn finish(mut self) -> QuantizeReport {
        if let Kept::Writing(writer) = self.kept {
            match writer.finish() {
                Ok(()) => self.report.cache = CacheUse::Written,
                Err(error) => warn_of(&error),
            }
        }
        QuantizeReport { took: self.started.elapsed(), ..self.report }
    }
}

impl Kept {
    fn at<B: Backend>(place: &CachePlace, backend: &B) -> Self {
        match Cache::open(place, backend) {
            Ok(cache) => return Self::Reading(cache),
            Err(reason) if reason.is_empty() => {}
            Err(reason) => {
                tracing::warn!("{} is made again: {reason}", place.path.display());
            }
        }
        match CacheWriter::create(place) {
            Ok(writer) => Self::Writing(writer),
            Err(error) => {
                warn_of(&error);
                Self::Nothing
            }
        }
    }
}

fn warn_of(error: &io::Error) {
    tracing::warn!("the quantized weights are not kept: {error}");
}

/// The parts with other data, in other formats.
fn in_formats<'a>(
    parts: &[TensorView<'a>],
    formats: &[Format],
    data: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<TensorView<'a>> {
    let parts = parts.iter().zip(formats).zip(data);
    parts.map(|((part, &format), data)| TensorView { format, data, ..part.clone() }).collect()
}

/// Bytes of one row of a matrix in `format`.
fn row_bytes(part: &TensorView<'_>, format: Format) -> Result<usize, BackendError> {
    let unsupported = || BackendError::Unsupported(format!("{} {:?}", format.name(), part.shape));
    let cols = part.shape.last().filter(|cols| **cols > 0);
    cols.and_then(|cols| format.bytes_of(*cols)).ok_or_else(unsupported)
}

/// Bytes of a matrix in `format`.
fn n_bytes(part: &TensorView<'_>, format: Format) -> Result<usize, BackendError> {
    let n_rows: usize = part.shape[..part.shape.len().saturating_sub(1)].iter().product();
    let too_many = || BackendError::OutOfMemory { what: "quantized weights", n_bytes: usize::MAX };
    row_bytes(part, format)?.checked_mul(n_rows).ok_or_else(too_many)
}
