//! How many processes a model is divided over, and the cores of each. Does not know models.

use anyhow::{Result, bail};
use throng_model::parallel::Grid;
use throng_os::affinity::Cores;
use throng_os::numa;

use crate::args::RankCount;
use crate::bounds;
use crate::config::ModelSection;

/// The processes that a section asks for; `None`: one process has the whole model.
///
/// # Errors
/// When they are too many.
pub(super) fn grid(section: &ModelSection) -> Result<Option<Grid>> {
    let n_ranks = match section.tensor_parallel_size {
        None => 1,
        Some(RankCount::Auto) => numa::nodes().len(),
        Some(RankCount::Ranks(n)) => n,
    };
    let grid = Grid { n_ranks, n_stages: section.pipeline_parallel_size.unwrap_or(1) };
    if !bounds::RANKS.contains(&grid.n_all()) {
        bail!(
            "{} processes share each of {} stages: at most {} are allowed",
            n_ranks,
            grid.n_stages,
            bounds::RANKS.end()
        );
    }
    Ok((grid.n_all() > 1).then_some(grid))
}

/// Cores and compute threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The cores; empty: all.
    pub(super) cores: Vec<usize>,
    pub(super) n_threads: usize,
    /// The NUMA node that they belong to.
    pub(super) node: usize,
}

/// The cores of each of `n` processes, with `n_threads` compute threads each if that is given: those of one
/// NUMA node, or a part of them.
pub(super) fn places(n: usize, n_threads: Option<usize>) -> Vec<Place> {
    let all = Cores::allowed();
    places_of(&numa::nodes(), &all.logical[..all.n_physical], n, n_threads)
}

fn places_of(nodes: &[Vec<usize>], physical: &[usize], n: usize, n_threads: Option<usize>) -> Vec<Place> {
    let place = |rank: usize| {
        let node_idx = rank * nodes.len() / n;
        let on_node = (0..n).filter(|rank| rank * nodes.len() / n == node_idx);
        let (first, n_here) = on_node.fold((n, 0), |(first, count), rank| (first.min(rank), count + 1));
        let node = &nodes[node_idx.min(nodes.len() - 1)];
        // With fewer nodes than processes each has a part of a node; with more, some nodes are left.
        let of_node: Vec<usize> = node.iter().copied().filter(|core| physical.contains(core)).collect();
        let idx = rank - first;
        let part = idx * of_node.len() / n_here..(idx + 1) * of_node.len() / n_here;
        let cores = of_node[part].to_vec();
        let n_threads = n_threads.filter(|&n| n > 0).unwrap_or(cores.len()).max(1);
        // More threads than cores would wait for each other on them.
        let cores = if n_threads <= cores.len() { cores } else { Vec::new() };
        Place { cores, n_threads, node: node_idx }
    };
    (0..n).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(cores: &[usize], n_threads: usize, node: usize) -> Place {
        Place { cores: cores.to_vec(), n_threads, node }
    }

    #[test]
    fn processes_have_cores_of_one_node_each() {
        let nodes = [vec![0, 1, 2, 3, 8, 9], vec![4, 5, 6, 7]];
        let physical = [0, 1, 2, 3, 4, 5, 6, 7];
        let of = |n, n_threads| places_of(&nodes, &physical, n, n_threads);
        assert_eq!(of(2, None), [place(&[0, 1, 2, 3], 4, 0), place(&[4, 5, 6, 7], 4, 1)]);
        assert_eq!(of(2, Some(1)), [place(&[0, 1, 2, 3], 1, 0), place(&[4, 5, 6, 7], 1, 1)]);
        let quarters =
            [place(&[0, 1], 2, 0), place(&[2, 3], 2, 0), place(&[4, 5], 2, 1), place(&[6, 7], 2, 1)];
        assert_eq!(of(4, None), quarters);
        assert_eq!(of(3, None), [place(&[0, 1], 2, 0), place(&[2, 3], 2, 0), place(&[4, 5, 6, 7], 4, 1)]);
        // More threads than cores run anywhere.
        assert_eq!(of(2, Some(5)), [place(&[], 5, 0), place(&[], 5, 1)]);
        let single = [vec![0]];
        assert_eq!(places_of(&single, &[0], 2, None), [place(&[], 1, 0), place(&[0], 1, 0)]);
    }
}
