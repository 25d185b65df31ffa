//! Low-rank matrices of adapters, and their products for the rows of each adapter.

use std::collections::HashMap;
use std::sync::Arc;

use throng_model::backend::{BackendError, LowRankPart, RowGroups};

use crate::GpuBackend;
use crate::buffers::Buffer;
use crate::device::{Device, Storage};
use crate::kernel::Kernel;
use crate::recorder::linear_groups;

/// The low-rank matrices of an adapter for a linear layer.
#[derive(Debug)]
pub struct LowRank {
    cols: usize,
    matrices: Storage,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    first_col: usize,
    n_out: usize,
    rank: usize,
    a_at: usize,
    b_at: usize,
    scale: f32,
}

impl LowRank {
    pub(crate) fn new(
        device: &Arc<Device>,
        cols: usize,
        parts: &[LowRankPart<'_>],
    ) -> Result<Self, BackendError> {
        let mut numbers: Vec<f32> = Vec::new();
        let mut held = Vec::new();
        for part in parts {
            let a_at = numbers.len();
            numbers.extend_from_slice(part.a);
            let b_at = numbers.len();
            numbers.extend_from_slice(part.b);
            let n_out = part.b.len() / part.rank.max(1);
            let &LowRankPart { first_col, rank, scale, .. } = part;
            held.push(Part { first_col, n_out, rank, a_at, b_at, scale });
        }
        let matrices = device.storage_of("adapters", bytemuck::cast_slice(&numbers))?;
        Ok(Self { cols, matrices, parts: held })
    }
}

/// Lists of rows on the device, and products between two matrices.
#[derive(Debug, Default)]
pub(crate) struct RowLists {
    lists: HashMap<Vec<usize>, Arc<Storage>>,
    shrunk: Option<Storage>,
}

/// Maximum number of lists that are kept.
const MOST_LISTS: usize = 256;

impl GpuBackend {
    pub(super) fn run_low_rank<'a>(
        &mut self,
        x: &Buffer,
        groups: &'a RowGroups,
        of: &dyn Fn(usize) -> Option<&'a LowRank>,
        out: &Buffer,
    ) {
        for group in 0..groups.len() {
            let rows = groups.rows(group);
            let Some(low_rank) = of(group).filter(|_| !rows.is_empty()) else { continue };
            assert_eq!(low_rank.cols, x.cols, "columns of an adapter");
            let list = self.row_list(rows);
            for part in &low_rank.parts {
                self.run_low_rank_part(x, (&list, rows.len()), low_rank, part, out);
            }
        }
    }

    fn run_low_rank_part(
        &mut self,
        x: &Buffer,
        (list, n_rows): (&Storage, usize),
        low_rank: &LowRank,
        part: &Part,
        out: &Buffer,
    ) {
        let n_shrunk = n_rows * part.rank;
        let shrunk = &mut self.scratch.row_lists.shrunk;
        if shrunk.as_ref().is_none_or(|shrunk| shrunk.buffer.size() < n_shrunk as u64 * 4) {
            let n_bytes = n_shrunk.next_power_of_two() * 4;
            *shrunk = Some(self.device.storage_or_empty("adapters", n_bytes));
        }
        let shrunk = shrunk.as_ref().expect("it was made");
        let params = |n: usize| {
            let numbers = [
                n,
                low_rank.cols,
                part.rank,
                part.n_out,
                x.cols,
                out.cols,
                part.first_col,
                part.a_at,
                part.b_at,
                0,
            ];
            let mut params = numbers.map(|number| number as u32);
            params[9] = part.scale.to_bits();
            params
        };
        let buffers = [&x.storage, &low_rank.matrices, list, shrunk];
        let groups = linear_groups(n_shrunk.div_ceil(64));
        self.recorder.run(Kernel::LowRank { shrinks: true }, &buffers, &params(n_shrunk), groups);
        let n = n_rows * part.n_out;
        let buffers = [&x.storage, &low_rank.matrices, list, shrunk, &out.storage];
        let groups = linear_groups(n.div_ceil(64));
        self.recorder.run(Kernel::LowRank { shrinks: false }, &buffers, &params(n), groups);
    }

    fn row_list(&mut self, rows: &[usize]) -> Arc<Storage> {
        let lists = &mut self.scratch.row_lists.lists;
        if let Some(list) = lists.get(rows) {
            return Arc::clone(list);
        }
        if lists.len() >= MOST_LISTS {
            lists.clear();
        }
        let words: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let list = Arc::new(self.device.storage_or_empty("lists of rows", size_of_val(&*words)));
        // No operation has read it yet, so the write may come before those that are recorded.
        self.device.queue.write_buffer(&list.buffer, 0, bytemuck::cast_slice(&words));
        lists.insert(rows.to_vec(), Arc::clone(&list));
        list
    }
}
