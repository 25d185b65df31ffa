//! Number of processes that a model is divided over, and the cores of each. Does not know models.

use anyhow::{Result, bail};
use throng_model::parallel::Grid;
use throng_os::affinity::Cores;
use throng_os::numa;

use super::messages::Host;
use crate::args::RankCount;
use crate::bounds;
use crate::config::ModelSection;

/// The processes of a section, among the `n_started` processes of an MPI job if there is one; `None`: one
/// process has the whole model.
///
/// # Errors
/// When there are too many processes, or more or fewer than were started.
pub(super) fn grid(section: &ModelSection, n_started: Option<usize>) -> Result<Option<Grid>> {
    if let Some(n_started) = n_started {
        return grid_of_job(section, n_started).map(Some);
    }
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

/// The arrangement of all processes of a job: the number in a direction without a flag is chosen.
fn grid_of_job(section: &ModelSection, n_started: usize) -> Result<Grid> {
    let asked = match section.tensor_parallel_size {
        Some(RankCount::Ranks(n)) => Some(n),
        None | Some(RankCount::Auto) => None,
    };
    let n_stages = section.pipeline_parallel_size;
    let [n_ranks, n_stages] = match (asked, n_stages) {
        (None, n_stages) => [n_started / n_stages.unwrap_or(1), n_stages.unwrap_or(1)],
        (Some(n_ranks), None) => [n_ranks, n_started / n_ranks],
        (Some(n_ranks), Some(n_stages)) => [n_ranks, n_stages],
    };
    if n_ranks * n_stages != n_started || !bounds::RANKS.contains(&n_started) {
        bail!(
            "mpirun started {n_started} processes: --tensor-parallel-size × --pipeline-parallel-size must be as \
             many, and at most {}; without these flags all processes share each layer",
            bounds::RANKS.end()
        );
    }
    Ok(Grid { n_ranks, n_stages })
}

/// Cores and compute threads of the processes on several machines: those with the same cores of a machine
/// share them, those that mpirun has bound keep theirs.
pub(super) fn places_on_hosts(hosts: &[Host], n_threads: Option<usize>) -> Vec<Place> {
    let place = |rank: usize| {
        let host = &hosts[rank];
        let shares = |other: &usize| hosts[*other].name == host.name && hosts[*other].cores == host.cores;
        let here: Vec<usize> = (0..hosts.len()).filter(shares).collect();
        let alone = Place {
            cores: Vec::new(),
            n_threads: n_threads.filter(|&n| n > 0).unwrap_or(host.cores.len()).max(1),
            node: host.nodes.iter().position(|node| node.first() == host.cores.first()).unwrap_or(0),
        };
        let place = match here.as_slice() {
            [_] => alone,
            _ => {
                let idx = here.iter().position(|&other| other == rank).unwrap_or(0);
                places_of(&host.nodes, &host.cores, here.len(), n_threads).swap_remove(idx)
            }
        };
        // Nodes of different machines have different memory.
        let first = hosts.iter().position(|other| other.name == host.name).unwrap_or(rank);
        Place { node: first * MAX_NODES + place.node, ..place }
    };
    (0..hosts.len()).map(place).collect()
}

/// More NUMA nodes than a machine has.
const MAX_NODES: usize = 1024;

/// Cores and compute threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Cores of the process; empty: all.
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

    #[test]
    fn all_processes_of_a_job_are_used() {
        let of = |tensor: Option<usize>, pipeline: Option<usize>, n_started| {
            let section = ModelSection {
                tensor_parallel_size: tensor.map(RankCount::Ranks),
                pipeline_parallel_size: pipeline,
                ..ModelSection::default()
            };
            grid(&section, Some(n_started)).ok().flatten().map(|grid| (grid.n_ranks, grid.n_stages))
        };
        assert_eq!(of(None, None, 3), Some((3, 1)));
        assert_eq!(of(None, Some(2), 4), Some((2, 2)));
        assert_eq!(of(Some(2), None, 6), Some((2, 3)));
        assert_eq!(of(Some(3), Some(2), 6), Some((3, 2)));
        let refused = [(Some(2), Some(2), 2), (Some(4), None, 2), (None, Some(3), 4), (None, None, 33)];
        assert!(refused.into_iter().all(|(tensor, pipeline, n)| of(tensor, pipeline, n).is_none()));
    }

    #[test]
    fn processes_of_one_machine_share_its_cores_unless_they_are_bound() {
        let host = |name: &str, cores: &[usize]| {
            let mut host = Host::own();
            (host.name, host.cores, host.nodes) = (name.to_owned(), cores.to_vec(), vec![cores.to_vec()]);
            host
        };
        let apart = [host("a", &[0, 1]), host("b", &[0, 1])];
        let node = |rank: usize| rank * MAX_NODES;
        assert_eq!(places_on_hosts(&apart, None), [place(&[], 2, 0), place(&[], 2, node(1))]);
        let together = [host("a", &[0, 1]), host("a", &[0, 1]), host("b", &[4])];
        let shared = [place(&[0], 1, 0), place(&[1], 1, 0), place(&[], 1, node(2))];
        assert_eq!(places_on_hosts(&together, None), shared);
        let bound = [host("a", &[0]), host("a", &[1])];
        assert_eq!(places_on_hosts(&bound, Some(3)), [place(&[], 3, 0), place(&[], 3, 0)]);
    }

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
