//! The processor's memory: packed weights, keys and values in the layout of the kernels. Does not know the
//! computation.

use std::sync::OnceLock;

use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::attention::{self, KvLayer, KvShape, SharedPrefixGroups};
use throng_kernels::low_rank::{LowRank, LowRankPart};
use throng_kernels::quant::{Format, PackedMatrix};

use super::{CpuBackend, CpuMatrix};
use crate::backend::host_tensor::HostTensor;
use crate::backend::rotations::Rotations;
use crate::backend::{BackendError, BlockCopy, DeviceBlockLayout, DeviceMemory, Expert, MatrixRole};
use crate::batch_input::BatchInput;
use crate::config::RopeTable;
use crate::kv_cache::KvLayout;
use crate::parallel::group::RankGroup;
use throng_checkpoint::TensorView;

const _: () =
    assert!(BLOCK_TOKENS == attention::BLOCK_TOKENS, "the scheduler and the kernels mean the same block");

/// Pages for this number of tokens are zeroed at the start: zeroing them later slows the first prompts by
/// some percent.
const TOUCHED_TOKENS: usize = 2048;
/// The most memory that is zeroed at the start.
const TOUCHED_BYTES: usize = 256 << 20;

/// The name of the layout of exported blocks: the panels of `throng_kernels::attention::KvLayer`, layer after
/// layer. It is numbered anew when these panels change.
const BLOCK_LAYOUT: &str = "throng-cpu-panels-1";

/// A batch, with its data in the form that the kernels read.
#[derive(Debug, Default)]
pub struct CpuBatch {
    pub(super) input: BatchInput,
    pub(super) shared_prefixes: SharedPrefixGroups,
    /// Slots of each token's keys and values: `16 block + slot`.
    pub(super) slots: Vec<usize>,
    /// Angles of each table for the batch's positions in sections, computed at their first use.
    angles: OnceLock<Vec<OnceLock<Vec<f32>>>>,
}

impl CpuBatch {
    /// Cosines and sines of each token, one row after the other; `None` where a table or the batch has no
    /// sections.
    pub(super) fn angles_of_sections(&self, tables: &[Rotations], table_idx: usize) -> Option<&[f32]> {
        let table = &tables[table_idx];
        if self.input.rotary.is_empty() || !table.has_sections() {
            return None;
        }
        let all = self.angles.get_or_init(|| tables.iter().map(|_| OnceLock::new()).collect());
        let gather = || {
            let mut angles = Vec::with_capacity(2 * table.n_pairs() * self.input.rotary.len());
            self.input.rotary.iter().for_each(|&position| table.gather(position, &mut angles));
            angles
        };
        Some(all[table_idx].get_or_init(gather))
    }
}

impl DeviceMemory for CpuBackend {
    type Buffer = HostTensor;
    type Matrix = CpuMatrix;
    type Experts = Vec<Expert<Self>>;
    type Vector = Vec<f32>;
    type LowRank = LowRank;
    type RopeTables = Vec<Rotations>;
    type KvCache = Vec<Option<KvLayer>>;
    type Batch = CpuBatch;

    fn buffer(&self, max_rows: usize, cols: usize) -> Result<HostTensor, BackendError> {
        HostTensor::new(max_rows, cols)
    }

    fn n_rows(&self, x: &HostTensor) -> usize {
        x.n_rows()
    }

    fn set_rows(&mut self, x: &mut HostTensor, n_rows: usize) {
        x.set_rows(n_rows);
    }

    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<CpuMatrix, BackendError> {
        CpuMatrix::pack(role, parts, PackedMatrix::pack, &self.pool)
    }

    fn experts(&self, experts: Vec<Expert<Self>>) -> Result<Vec<Expert<Self>>, BackendError> {
        Ok(experts)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    fn low_rank(
        &self,
        cols: usize,
        parts: &[LowRankPart<'_>],
        format: Format,
    ) -> Result<LowRank, BackendError> {
        let bytes = |p: &LowRankPart<'_>| LowRank::bytes_of(p.rank, cols, p.b.len() / p.rank, format);
        let n_bytes = parts.iter().map(bytes).sum();
        LowRank::pack(cols, parts, format).ok_or(BackendError::OutOfMemory { what: "an adapter", n_bytes })
    }

    fn rope_tables(&self, ropes: &[RopeTable], n_positions: usize) -> Result<Vec<Rotations>, BackendError> {
        ropes.iter().map(|rope| Rotations::new(rope, n_positions)).collect()
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<Vec<Option<KvLayer>>, BackendError> {
        let n_bytes = layout.bytes().unwrap_or(usize::MAX);
        let layer = |shape: KvShape| {
            KvLayer::new(shape).ok_or(BackendError::OutOfMemory { what: "keys and values", n_bytes })
        };
        let layers = layout.layers.iter().map(|shape| shape.map(layer).transpose());
        let mut layers = layers.collect::<Result<Vec<_>, _>>()?;
        let n_blocks = n_touched_blocks(layout);
        self.each(layers.iter_mut().flatten(), |layer| layer.touch(n_blocks));
        Ok(layers)
    }

    fn copy_blocks(&mut self, cache: &mut Vec<Option<KvLayer>>, copies: &[BlockCopy]) {
        self.each(cache.iter_mut().flatten(), |layer| {
            copies.iter().for_each(|copy| layer.copy_block(copy.from, copy.to));
        });
    }

    fn block_layout(&self, cache: &Vec<Option<KvLayer>>) -> Option<DeviceBlockLayout> {
        let n_bytes = cache.iter().flatten().map(KvLayer::block_bytes).sum();
        Some(DeviceBlockLayout { name: BLOCK_LAYOUT, n_bytes })
    }

    fn export_block(
        &mut self,
        cache: &Vec<Option<KvLayer>>,
        block: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        cache.iter().flatten().for_each(|layer| bytes.extend_from_slice(layer.block(block)));
        Ok(())
    }

    fn import_block(
        &mut self,
        cache: &mut Vec<Option<KvLayer>>,
        block: u32,
        mut bytes: &[u8],
    ) -> Result<(), BackendError> {
        for layer in cache.iter_mut().flatten() {
            let (of_layer, rest) = bytes.split_at(layer.block_bytes());
            layer.block_mut(block).copy_from_slice(of_layer);
            bytes = rest;
        }
        Ok(())
    }

    fn batch(&self) -> Result<CpuBatch, BackendError> {
        Ok(CpuBatch::default())
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut CpuBatch) {
        assert!(input.carried.is_empty(), "tokens are chosen on the host");
        batch.input.copy_from(input);
        batch.angles = OnceLock::new();
        batch.slots.clear();
        for span in &input.spans {
            batch.slots.extend((span.start..span.start + span.n_rows).map(|position| {
                let (block, slot) = input.slot(span, position);
                block * BLOCK_TOKENS + slot
            }));
        }
        batch.shared_prefixes.find(&batch.input.spans, &batch.input.blocks);
    }

    fn write_rows(&mut self, x: &mut HostTensor, rows: &[f32]) {
        x.set_rows(rows.len() / x.cols());
        x.as_mut_slice().copy_from_slice(rows);
    }

    fn download<'a>(&mut self, x: &'a mut HostTensor) -> Result<&'a mut [f32], BackendError> {
        self.group.as_ref().map_or(Ok(()), RankGroup::check)?;
        Ok(x.as_mut_slice())
    }
}

/// Blocks whose pages are zeroed before the first step: the first ones, which are adjacent.
fn n_touched_blocks(layout: &KvLayout) -> usize {
    let affordable = TOUCHED_BYTES / layout.bytes_per_block().unwrap_or(usize::MAX).max(1);
    affordable.min(TOUCHED_TOKENS / BLOCK_TOKENS)
}
