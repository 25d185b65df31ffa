//! Buffers on the device: activations, weights in rows, keys and values. Does not know operations.

use std::collections::HashSet;

use throng_model::backend::BlockCopy;
use throng_model::backend::rotations::Rotations;
use throng_model::kv_cache::KvShape;

use crate::device::Storage;
use crate::kernel::PanelLayout;

/// Activations, `[rows, cols]` of f32, and the copy that the host has requested.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) storage: Storage,
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    pub(crate) max_rows: usize,
    pub(crate) on_host: Vec<f32>,
}

/// A row of f32 weights, and the same on the host where that computes experts; else nothing.
#[derive(Debug)]
pub struct Vector(pub(crate) Storage, pub(crate) Vec<f32>);

/// Rotary embeddings, whose angles are computed for the positions of each step.
#[derive(Debug)]
pub struct RopeTables {
    pub(crate) id: u64,
    pub(crate) tables: Vec<Rotations>,
}

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) n_blocks: usize,
    pub(crate) layers: Vec<Option<KvLayer>>,
}

/// Keys and values of a layer, `[blocks, heads]` of panels.
#[derive(Debug)]
pub(crate) struct KvLayer {
    pub(crate) layout: PanelLayout,
    pub(crate) n_heads: usize,
    pub(crate) keys: Storage,
    /// `None` where values are elements of keys.
    pub(crate) values: Option<Storage>,
}

impl KvLayer {
    /// Number of words of the keys of a block; its values take the same number.
    pub(crate) fn block_words(&self) -> usize {
        self.layout.panel_words() * self.n_heads
    }

    /// Buffers of keys and of values.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Storage> {
        std::iter::once(&self.keys).chain(&self.values)
    }
}

/// Layout of the panels of a layer.
pub(crate) fn panel_layout(shape: &KvShape) -> PanelLayout {
    PanelLayout { dtype: shape.dtype.into(), dim4: shape.head_dim.div_ceil(4) as u32 }
}

/// Bytes of the keys of a block in a layer; its values take the same number.
pub(crate) fn layer_block_bytes(shape: &KvShape) -> usize {
    panel_layout(shape).panel_words().saturating_mul(shape.n_kv_heads).saturating_mul(4)
}

/// Divides copies that depend on each other's order into rounds of copies that may be made at once.
pub(crate) fn rounds(copies: &[BlockCopy]) -> Vec<Vec<BlockCopy>> {
    let (mut rounds, mut round) = (Vec::new(), Vec::new());
    let (mut read, mut written) = (HashSet::new(), HashSet::new());
    for &copy in copies {
        if written.contains(&copy.from) || written.contains(&copy.to) || read.contains(&copy.to) {
            rounds.push(std::mem::take(&mut round));
            read.clear();
            written.clear();
        }
        read.insert(copy.from);
        written.insert(copy.to);
        round.push(copy);
    }
    rounds.push(round);
    rounds
}
