//! Memory of the parts of a model: each rank reads its share of the weights.

use throng_kernels::quant::Format;
use throng_model::BackendKind;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::parallel::Grid;
use throng_testkit::tiny_model::TinyModel;

use super::{OPTIONS, part_of};

#[test]
fn each_rank_loads_its_share_of_the_weights_and_of_the_cache() {
    let model = TinyModel { n_layers: 4, feed_forward: 512, ..TinyModel::default() };
    for format in [Format::Q4_0, Format::F32] {
        let bytes = model.gguf(format);
        let open = || load_bytes("tiny", &bytes, &OPTIONS, &mut |_| {}).expect("it loads");
        let loaded = |grid: Grid, rank: usize| {
            let part = part_of(&open, grid, rank).expect("it is divided");
            let mut n_bytes = 0;
            part.prepare(BackendKind::Cpu, 1, &mut |progress| n_bytes = progress.done_bytes)
                .expect("it fits");
            (n_bytes, part.kv_layout(KvDtype::F16, 8).bytes().expect("a size"))
        };
        let whole = loaded(Grid { n_ranks: 1, n_stages: 1 }, 0);
        for grid in [
            Grid { n_ranks: 2, n_stages: 1 },
            Grid { n_ranks: 1, n_stages: 2 },
            Grid { n_ranks: 2, n_stages: 2 },
        ] {
            let parts: Vec<_> = (0..grid.n_all()).map(|rank| loaded(grid, rank)).collect();
            let share = 1.0 / grid.n_all() as f64;
            for (rank, (weights, cache)) in parts.iter().enumerate() {
                println!("{} over {grid:?}: rank {rank} has {weights} of {} bytes", format.name(), whole.0);
                // Stages have whole layers, and the table or the head beside them.
                let most = if grid.n_stages > 1 { 1.25 * share } else { 1.05 * share };
                assert!((*weights as f64) < most * whole.0 as f64, "{format:?} {grid:?} {rank}");
                assert_eq!(*cache, whole.1 / grid.n_all());
            }
        }
    }
}
