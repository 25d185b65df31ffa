//! Buffers, weights, keys and values on the device, and the copies between it and the host. Does not know
//! operations.

use std::sync::Arc;

use throng_checkpoint::TensorView;
use throng_kernels::quant::Format;
use throng_model::backend::rotations::Rotations;
use throng_model::backend::{
    BackendError, BlockCopy, DeviceBlockLayout, DeviceMemory, Expert, LowRankPart, MatrixRole,
};
use throng_model::batch_input::BatchInput;
use throng_model::config::RopeTable;
use throng_model::kv_cache::{KvLayout, KvShape};

use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::{Buffer, KvCache, KvLayer, RopeTables, Vector, layer_block_bytes, panel_layout, rounds};
use crate::device::Storage;
use crate::kernel::Kernel;
use crate::ops::experts::{DeviceExperts, Experts};
use crate::ops::host_experts::host_experts;
use crate::ops::low_rank::LowRank;
use crate::recorder::linear_groups;
use crate::weights::Matrix;

/// Layout of exported blocks: panels of keys and values of each layer.
const BLOCK_LAYOUT: &str = "gpu-panels-1";

impl DeviceMemory for GpuBackend {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Experts = Experts;
    type Vector = Vector;
    type LowRank = LowRank;
    type RopeTables = RopeTables;
    type KvCache = KvCache;
    type Batch = Batch;

    fn buffer(&self, max_rows: usize, cols: usize) -> Result<Buffer, BackendError> {
        let n_bytes = max_rows.checked_mul(cols).and_then(|n| n.checked_mul(4)).unwrap_or(usize::MAX);
        let storage = self.device.storage("activations", n_bytes)?;
        Ok(Buffer { storage, n_rows: 0, cols, max_rows, on_host: Vec::new() })
    }

    fn n_rows(&self, x: &Buffer) -> usize {
        x.n_rows
    }

    fn set_rows(&mut self, x: &mut Buffer, n_rows: usize) {
        assert!(n_rows <= x.max_rows, "{n_rows} rows in a buffer of {}", x.max_rows);
        x.n_rows = n_rows;
    }

    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<Matrix, BackendError> {
        match &self.host_experts {
            Some(host) if role == MatrixRole::Expert => host.cpu.matrix(role, parts).map(Matrix::on_host),
            _ => Matrix::new(&self.device, parts),
        }
    }

    fn experts(&self, experts: Vec<Expert<Self>>) -> Result<Experts, BackendError> {
        if self.host_experts.is_some() {
            return host_experts(experts).map(Experts::Host);
        }
        DeviceExperts::new(&self.device, experts).map(Experts::Device)
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, BackendError> {
        let on_host = if self.host_experts.is_some() { values.to_vec() } else { Vec::new() };
        Ok(Vector(self.device.storage_of("vectors", bytemuck::cast_slice(values))?, on_host))
    }

    fn low_rank(&self, cols: usize, parts: &[LowRankPart<'_>], _: Format) -> Result<LowRank, BackendError> {
        LowRank::new(&self.device, cols, parts)
    }

    fn rope_tables(&self, ropes: &[RopeTable], n_positions: usize) -> Result<RopeTables, BackendError> {
        let tables = ropes.iter().map(|rope| Rotations::new(rope, n_positions)).collect::<Result<_, _>>()?;
        Ok(RopeTables { id: self.device.new_id(), tables })
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<KvCache, BackendError> {
        let layer = |shape: &Option<KvShape>| shape.as_ref().map(|shape| self.kv_layer(shape)).transpose();
        let layers = layout.layers.iter().map(layer).collect::<Result<_, _>>()?;
        Ok(KvCache { n_blocks: layout.n_blocks, layers })
    }

    fn copy_blocks(&mut self, cache: &mut KvCache, copies: &[BlockCopy]) {
        for round in rounds(copies) {
            let words: Vec<u32> = round.iter().flat_map(|copy| [copy.from, copy.to]).collect();
            let table = Arc::new(self.device.storage_or_empty("copies of blocks", size_of_val(&*words)));
            self.device.queue.write_buffer(&table.buffer, 0, bytemuck::cast_slice(&words));
            for layer in cache.layers.iter().flatten() {
                let block_words = layer.block_words();
                let n = round.len() * block_words;
                let params = [n as u32, block_words as u32];
                let groups = linear_groups(n.div_ceil(64));
                for part in layer.parts() {
                    self.recorder.run(Kernel::CopyBlocks, &[part, &table], &params, groups);
                }
            }
        }
    }

    fn block_layout(&self, cache: &KvCache) -> Option<DeviceBlockLayout> {
        let words = cache.layers.iter().flatten().map(|layer| layer.block_words() * layer.parts().count());
        Some(DeviceBlockLayout { name: BLOCK_LAYOUT, n_bytes: words.sum::<usize>() * 4 })
    }

    fn export_block(&mut self, cache: &KvCache, block: u32, bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        assert!((block as usize) < cache.n_blocks, "a block beyond the cache");
        let mut ranges = Vec::new();
        for layer in cache.layers.iter().flatten() {
            let n = layer.block_words() * 4;
            let at = block as usize * n;
            ranges.extend(layer.parts().map(|part| (part, at..at + n)));
        }
        let n_bytes: usize = ranges.iter().map(|(_, range)| range.len()).sum();
        let start = bytes.len();
        bytes.resize(start + n_bytes, 0);
        self.read(&ranges, &mut bytes[start..])
    }

    fn import_block(&mut self, cache: &mut KvCache, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        assert!((block as usize) < cache.n_blocks, "a block beyond the cache");
        self.recorder.submit();
        let mut rest = bytes;
        for layer in cache.layers.iter().flatten() {
            let n = layer.block_words() * 4;
            for part in layer.parts() {
                let (these, others) = rest.split_at(n);
                self.device.queue.write_buffer(&part.buffer, (block as usize * n) as u64, these);
                rest = others;
            }
        }
        self.device.check()
    }

    fn batch(&self) -> Result<Batch, BackendError> {
        Batch::new(&self.device)
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut Batch) {
        assert!(input.carried.is_empty(), "tokens are chosen on the host");
        let uploaded = batch.upload(input, &mut self.recorder);
        self.note(uploaded);
    }

    fn write_rows(&mut self, x: &mut Buffer, rows: &[f32]) {
        let n_rows = rows.len() / x.cols;
        self.set_rows(x, n_rows);
        self.recorder.write(&x.storage, 0, bytemuck::cast_slice(rows));
    }

    fn download<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a mut [f32], BackendError> {
        let n = x.n_rows * x.cols;
        x.on_host.resize(n, 0.0);
        self.read(&[(&x.storage, 0..n * 4)], bytemuck::cast_slice_mut(&mut x.on_host))?;
        Ok(&mut x.on_host)
    }

    fn download_unknown<'a>(
        &mut self,
        x: &'a mut Buffer,
        known: &[bool],
    ) -> Result<&'a mut [f32], BackendError> {
        assert_eq!(known.len(), x.n_rows, "a mark for each row");
        let row = |row_idx: usize| row_idx * x.cols * 4..(row_idx + 1) * x.cols * 4;
        let unknown: Vec<usize> = (0..x.n_rows).filter(|&row_idx| !known[row_idx]).collect();
        let ranges: Vec<_> = unknown.iter().map(|&row_idx| (&x.storage, row(row_idx))).collect();
        x.on_host.resize(x.n_rows * x.cols, 0.0);
        let read = &mut x.on_host[..unknown.len() * x.cols];
        self.read(&ranges, bytemuck::cast_slice_mut(read))?;
        // From the last row on, as no row is read before the place where it belongs.
        for (i, &row_idx) in unknown.iter().enumerate().rev().filter(|&(i, &row_idx)| i != row_idx) {
            x.on_host.copy_within(i * x.cols..(i + 1) * x.cols, row_idx * x.cols);
        }
        Ok(&mut x.on_host)
    }
}

impl GpuBackend {
    fn kv_layer(&self, shape: &KvShape) -> Result<KvLayer, BackendError> {
        let refused = |why: String| Err(BackendError::Unsupported(why));
        if shape.dtype.bytes_of(shape.head_dim).is_none() {
            return refused(format!("a {} KV cache with heads of {}", shape.dtype, shape.head_dim));
        }
        if shape.values_in_keys.is_some_and(|first| !first.is_multiple_of(4)) {
            return refused("values in keys that begin inside four elements".to_owned());
        }
        let layout = panel_layout(shape);
        let n_bytes = layer_block_bytes(shape).saturating_mul(shape.n_blocks);
        let keys = self.device.storage("keys", n_bytes)?;
        let has_values = shape.values_in_keys.is_none();
        let values = has_values.then(|| self.device.storage("values", n_bytes)).transpose()?;
        Ok(KvLayer { layout, n_heads: shape.n_kv_heads, keys, values })
    }

    /// Copies bytes to the host, once all operations before have finished.
    pub(crate) fn read(
        &mut self,
        ranges: &[(&Storage, std::ops::Range<usize>)],
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        self.check()?;
        if self.staging.as_ref().is_none_or(|staging| staging.buffer.size() < out.len() as u64) {
            self.staging = Some(self.device.staging(out.len().next_power_of_two())?);
        }
        let staging = self.staging.as_ref().expect("it was made");
        self.recorder.read(ranges, staging, out)
    }
}
