//! Attention of encoders whose scores depend on the distance of two tokens.

use std::sync::Arc;

use throng_model::backend::{AttentionQueries, Columns, RelativeScores};

use super::attention::{Tiling, attend_params, most_rows};
use crate::GpuBackend;
use crate::batch::Batch;
use crate::buffers::Buffer;
use crate::device::Storage;
use crate::kernel::Kernel;

impl GpuBackend {
    pub(super) fn run_relative(
        &mut self,
        batch: &Batch,
        AttentionQueries { qkv, shape, .. }: AttentionQueries<'_, Self>,
        relative: RelativeScores<'_, Self>,
        out: &Buffer,
    ) {
        let dim4 = shape.head_dim.div_ceil(4);
        let shared_bytes = self.device.description().max_shared_bytes as usize;
        let tiling = Tiling::new(1, most_rows(batch), 32 * dim4 + 4 * 128 + 128, shared_bytes);
        let (tiles, n_tiles) = batch.tiles(tiling.tile_rows);
        let buckets = self.buckets(&relative.positions.buckets);
        let mut params = attend_params(shape, &tiling, qkv, out);
        // All tokens of the sequence.
        params[14] = 1;
        params[18] = batch.places.spans;
        params[21..28].copy_from_slice(&[
            Columns::of_keys(shape).first as u32,
            Columns::of_values(shape).first as u32,
            relative.positions.n_buckets as u32,
            (relative.positions.buckets.len() / 2) as u32,
            u32::from(relative.bias.is_some()),
            u32::from(relative.of_queries.is_some()),
            u32::from(relative.of_keys.is_some()),
        ]);
        let kernel = Kernel::AttendRelative { n_queries: tiling.n_queries as u32, dim4: dim4 as u32 };
        let of_queries = relative.of_queries.map_or(&self.nothing, |scores| &scores.storage);
        let of_keys = relative.of_keys.map_or(&self.nothing, |scores| &scores.storage);
        let bias = relative.bias.map_or(&self.nothing, |bias| &bias.0);
        let buffers =
            [&qkv.storage, of_queries, of_keys, &batch.words, &*tiles, bias, &out.storage, &*buckets];
        let groups = [(shape.n_heads * tiling.n_head_tiles) as u32, n_tiles as u32, 1];
        self.recorder.run(kernel, &buffers, &params, groups);
    }

    /// The table of buckets, which all layers have in common.
    fn buckets(&mut self, buckets: &[u16]) -> Arc<Storage> {
        if let Some((known, storage)) = &self.scratch.buckets
            && known == buckets
        {
            return Arc::clone(storage);
        }
        let words: Vec<u32> = buckets.iter().map(|&bucket| u32::from(bucket)).collect();
        let storage = Arc::new(self.device.storage_or_empty("buckets", size_of_val(&*words)));
        self.device.queue.write_buffer(&storage.buffer, 0, bytemuck::cast_slice(&words));
        self.scratch.buckets = Some((buckets.to_vec(), Arc::clone(&storage)));
        storage
    }
}
