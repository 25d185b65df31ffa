//! NUMA nodes: the cores near each node's memory. One node on systems that do not report them.

use crate::affinity::Cores;

/// Cores of each node that this process may use, in the order of [`Cores`]; nodes without such cores are left
/// out. At least one node.
pub fn nodes() -> Vec<Vec<usize>> {
    let cores = Cores::allowed().logical;
    let list =
        |idx: usize| std::fs::read_to_string(format!("/sys/devices/system/node/node{idx}/cpulist")).ok();
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let lists = parse(&online).into_iter().filter_map(list);
    of_lists(&cores, lists)
}

fn of_lists(cores: &[usize], lists: impl Iterator<Item = String>) -> Vec<Vec<usize>> {
    let of_list = |list: String| -> Vec<usize> {
        let node = parse(&list);
        cores.iter().copied().filter(|core| node.contains(core)).collect()
    };
    let nodes: Vec<_> = lists.map(of_list).filter(|node: &Vec<usize>| !node.is_empty()).collect();
    let n_listed: usize = nodes.iter().map(Vec::len).sum();
    // Cores that no node lists, or several, say that the lists cannot be trusted.
    if n_listed == cores.len() { nodes } else { vec![cores.to_vec()] }
}

/// Numbers of a list such as `0-3,8`; empty if it is malformed.
fn parse(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let parts: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    parts.into_iter().flatten().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_listed_by_node_in_the_order_of_cores() {
        let lists =
            |lists: &[&str]| of_lists(&[0, 2, 4, 1, 3, 5], lists.iter().map(|list| (*list).to_owned()));
        assert_eq!(lists(&["0-1,4\n", "2,3,5\n"]), [vec![0, 4, 1], vec![2, 3, 5]]);
        assert_eq!(lists(&["0-7", ""]), [vec![0, 2, 4, 1, 3, 5]]);
        // A core is missing, or the list is malformed.
        assert_eq!(lists(&["0-3"]), [vec![0, 2, 4, 1, 3, 5]]);
        assert_eq!(lists(&["0-2", "3-x"]), [vec![0, 2, 4, 1, 3, 5]]);
        assert!(!nodes().is_empty());
    }
}
