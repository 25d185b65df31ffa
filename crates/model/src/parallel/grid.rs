//! The arrangement of ranks: some share each layer, and groups of them are the stages of a pipeline. Does not
//! know how ranks communicate.

use super::ModelPart;

/// Numbers of ranks in each direction.
///
/// Rank 0 chooses tokens, so the first `n_ranks` ranks are the last stage; those after them the stage before,
/// and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Ranks that share each layer.
    pub n_ranks: usize,
    /// Number of stages, each with its own layers.
    pub n_stages: usize,
}

impl Grid {
    /// Number of all ranks.
    pub fn n_all(self) -> usize {
        self.n_ranks * self.n_stages
    }

    /// The part of the model that a rank has.
    pub fn part(self, rank: usize) -> ModelPart {
        let Self { n_ranks, n_stages } = self;
        ModelPart { rank: rank % n_ranks, n_ranks, stage_idx: n_stages - 1 - rank / n_ranks, n_stages }
    }

    /// The groups of ranks: those that share layers, stage by stage from the last one, then those that pass
    /// activations on, each in the order of stages.
    pub fn groups(self) -> Vec<Vec<usize>> {
        let Self { n_ranks, n_stages } = self;
        let stage = |place: usize| (place * n_ranks..(place + 1) * n_ranks).collect();
        let column = |rank: usize| (0..n_stages).rev().map(|place| place * n_ranks + rank).collect();
        (0..n_stages).map(stage).chain((0..n_ranks).map(column)).collect()
    }

    /// Index among the [groups](Self::groups) of that with which a rank shares its layers, and of that to
    /// which it passes activations.
    pub fn groups_of(self, rank: usize) -> [usize; 2] {
        [rank / self.n_ranks, self.n_stages + rank % self.n_ranks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_is_in_the_last_stage() {
        let grid = Grid { n_ranks: 2, n_stages: 3 };
        assert_eq!(grid.n_all(), 6);
        let places: Vec<_> = (0..6).map(|rank| (grid.part(rank).rank, grid.part(rank).stage_idx)).collect();
        assert_eq!(places, [(0, 2), (1, 2), (0, 1), (1, 1), (0, 0), (1, 0)]);
        let groups = grid.groups();
        assert_eq!(groups, [vec![0, 1], vec![2, 3], vec![4, 5], vec![4, 2, 0], vec![5, 3, 1]]);
        for rank in 0..6 {
            assert!(grid.groups_of(rank).iter().all(|&group_idx| groups[group_idx].contains(&rank)));
        }
    }
}
