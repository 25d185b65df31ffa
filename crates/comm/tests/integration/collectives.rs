//! Results of collectives and messages over all numbers of ranks, and the bits of sums.

use fastrand::Rng;
use throng_comm::{Communicator, Summands};

use super::{run_ranks, soon};

/// Lengths around the ends of words, blocks, slots and the bound from which on ranks sum parts.
const LENGTHS: [usize; 9] = [0, 1, 7, 255, 257, 4096, 4099, 65_537, 140_001];

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng::with_seed(seed);
    (0..n).map(|_| (rng.f32() - 0.5) * (2.0_f32).powi(rng.i32(-20..20))).collect()
}

/// The sum in the documented order.
fn tree(ranks: &[Vec<f32>], i: usize) -> f32 {
    match ranks {
        [one] => one[i],
        _ => {
            let (first, second) = ranks.split_at(ranks.len() / 2);
            tree(first, i) + tree(second, i)
        }
    }
}

#[test]
fn sums_have_the_bits_of_the_tree_by_rank() {
    for n_ranks in 1..=5 {
        let all = run_ranks(n_ranks, &[], |rank, membership| {
            let mut group = membership.all();
            assert_eq!((group.rank(), group.n_ranks()), (rank, n_ranks));
            let sum = |n: usize| {
                let mut own = numbers((rank * 1000 + n) as u64, n);
                group.all_reduce(Summands::F32(&mut own), soon()).expect("nobody is lost");
                own
            };
            LENGTHS.map(sum)
        });
        for (i, n) in LENGTHS.into_iter().enumerate() {
            let of_ranks: Vec<_> = (0..n_ranks).map(|rank| numbers((rank * 1000 + n) as u64, n)).collect();
            let expected: Vec<u32> = (0..n).map(|i| tree(&of_ranks, i).to_bits()).collect();
            for sums in &all {
                let bits: Vec<u32> = sums[i].iter().map(|x| x.to_bits()).collect();
                assert!(bits == expected, "{n} elements over {n_ranks} ranks");
            }
        }
    }
}

#[test]
fn bfloat16_is_summed_in_f32_and_rounded_once() {
    let sums = run_ranks(3, &[], |rank, membership| {
        // 1 + 2^-8 + 2^-8: rounded after each sum it would stay 1.
        let mut own = vec![[0x3F80, 0x3B80, 0x3B80][rank]; 9001];
        membership.all().all_reduce(Summands::Bf16(&mut own), soon()).expect("nobody is lost");
        own
    });
    assert!(sums.iter().flatten().all(|&bits| bits == 0x3F81));
}

#[test]
fn bytes_are_gathered_broadcast_and_sent() {
    let seed = fastrand::u64(..);
    for n_ranks in 2..=4 {
        let bytes = |rank: usize, n: usize| -> Vec<u8> {
            let mut rng = Rng::with_seed(seed ^ rank as u64);
            (0..n).map(|_| rng.u8(..)).collect()
        };
        run_ranks(n_ranks, &[], |rank, membership| {
            let mut group = membership.all();
            for scale in [0, 1, 13, 100_000, 300_000] {
                let lengths: Vec<usize> = (0..n_ranks).map(|rank| rank * scale).collect();
                let mut all = vec![0; lengths.iter().sum()];
                group
                    .all_gather(&bytes(rank, rank * scale), &lengths, &mut all, soon())
                    .expect("all are there");
                let expected: Vec<u8> = (0..n_ranks).flat_map(|rank| bytes(rank, rank * scale)).collect();
                assert!(all == expected, "seed {seed}, {scale} bytes a rank over {n_ranks} ranks");

                let root = scale % n_ranks;
                let mut at_root = if rank == root { vec![0; all.len()] } else { Vec::new() };
                group
                    .gather(root, &bytes(rank, rank * scale), &lengths, &mut at_root, soon())
                    .expect("all are there");
                assert!(at_root == if rank == root { expected } else { Vec::new() }, "seed {seed}");
                let mut copy = if rank == root { bytes(root, scale) } else { vec![0; scale] };
                group.broadcast(root, &mut copy, soon()).expect("all are there");
                assert!(copy == bytes(root, scale), "seed {seed}, {scale} bytes of rank {root}");
                group.barrier(soon()).expect("all are there");
            }
            // Around the ring of ranks, more than a mailbox holds.
            let (next, before) = ((rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks);
            for n in [0, 3, 5_000_001] {
                // Rank 0 sends first, the others receive first: else all wait for room.
                let own = bytes(rank, n);
                let receive = |group: &mut dyn Communicator| group.receive_message(before, n, soon());
                let received = if rank == 0 {
                    group.send_message(next, &own, soon()).expect("it is read");
                    receive(&mut group)
                } else {
                    let received = receive(&mut group);
                    group.send_message(next, &own, soon()).expect("it is read");
                    received
                };
                assert!(received.expect("it was sent") == bytes(before, n), "seed {seed}, {n} bytes");
            }
            assert!(group.usage().n_operations > 20 && group.usage().n_bytes > 5_000_001);
        });
    }
}

#[test]
fn groups_of_some_ranks_do_not_disturb_each_other() {
    let groups = [vec![0, 1], vec![2, 3], vec![1, 3]];
    let sums = run_ranks(4, &groups, |rank, membership| {
        let mut own = vec![rank as f32; 100];
        let mut sums = Vec::new();
        let mut all = membership.all();
        for group_idx in 1..=3 {
            let Some(mut group) = membership.group(group_idx) else { continue };
            for _ in 0..50 {
                own.fill(rank as f32);
                group.all_reduce(Summands::F32(&mut own), soon()).expect("nobody is lost");
            }
            sums.push(own[99]);
        }
        assert!(membership.group(4).is_none());
        all.barrier(soon()).expect("nobody is lost");
        sums
    });
    assert_eq!(sums, [vec![1.0], vec![1.0, 4.0], vec![5.0], vec![5.0, 4.0]]);
}
