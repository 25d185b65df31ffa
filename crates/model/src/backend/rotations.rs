//! Cosines and sines of rotary embeddings, computed on the host. Does not know the device that reads them.

use std::sync::OnceLock;

use super::BackendError;
use crate::config::RopeTable;

/// Positions that are computed at a time.
const CHUNK: usize = 64;

/// The angles of one rotary embedding for all positions of a context. Each chunk of positions is computed
/// once, when one of them is first read: a long context costs neither time nor memory before sequences are
/// that long.
#[derive(Debug)]
pub struct Rotations {
    rope: RopeTable,
    /// `[2, 64, n_pairs]` each: cosines, then sines.
    chunks: Vec<OnceLock<Box<[f32]>>>,
}

impl Rotations {
    /// The rotary embedding `rope` at the positions below `n_positions`.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new(rope: &RopeTable, n_positions: usize) -> Result<Self, BackendError> {
        let n_chunks = n_positions.div_ceil(CHUNK);
        let n_bytes = n_chunks.saturating_mul(size_of::<OnceLock<Box<[f32]>>>());
        let mut chunks = Vec::new();
        let no_memory = |_| BackendError::OutOfMemory { what: "rope tables", n_bytes };
        chunks.try_reserve_exact(n_chunks).map_err(no_memory)?;
        chunks.resize_with(n_chunks, OnceLock::new);
        Ok(Self { rope: rope.clone(), chunks })
    }

    /// Number of pairs of elements that are rotated together: half the rotated part of a head.
    pub fn n_pairs(&self) -> usize {
        self.rope.frequencies.len()
    }

    /// Cosines and sines at one position, one of each a pair.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let chunk = self.chunks[position / CHUNK].get_or_init(|| self.compute(position / CHUNK));
        let (cos, sin) = chunk.split_at(chunk.len() / 2);
        let pairs = position % CHUNK * self.n_pairs()..(position % CHUNK + 1) * self.n_pairs();
        (&cos[pairs.clone()], &sin[pairs])
    }

    /// Whether pairs are rotated by sections of a position.
    pub fn has_sections(&self) -> bool {
        !self.rope.sections.is_empty()
    }

    /// Appends cosines, then sines, at a position in several sections: each pair uses the position of its
    /// section.
    pub fn gather(&self, position: [u32; 3], angles: &mut Vec<f32>) {
        let sections = || self.rope.sections.iter().enumerate();
        let at = |section: u8| self.at(position[usize::from(section)] as usize);
        angles.extend(sections().map(|(pair, &section)| at(section).0[pair]));
        angles.extend(sections().map(|(pair, &section)| at(section).1[pair]));
    }

    /// Angles are computed in f64: in f32 a position of 100,000 is off by up to 0.004 radians.
    fn compute(&self, chunk_idx: usize) -> Box<[f32]> {
        let positions = chunk_idx * CHUNK..(chunk_idx + 1) * CHUNK;
        let RopeTable { frequencies, amplitude, growth, .. } = &self.rope;
        let angles = || {
            positions.clone().flat_map(|position| {
                let growth = growth.map_or(1.0, |growth| growth.at(position));
                frequencies.iter().map(move |frequency| (position as f64 * frequency, amplitude * growth))
            })
        };
        let cos = angles().map(|(angle, amplitude)| (angle.sin_cos().1 * amplitude) as f32);
        cos.chain(angles().map(|(angle, amplitude)| (angle.sin_cos().0 * amplitude) as f32)).collect()
    }
}
