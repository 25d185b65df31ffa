//! One process of an MPI job, started by `mpirun -n N`: results of collectives and messages over all ranks,
//! and the bits of sums. A failure ends the job with an error status.
#![allow(missing_docs)]

use std::time::Duration;

use fastrand::Rng;
use throng_comm::mpi::MpiJob;
use throng_comm::{CommError, Communicator, Deadline, Loss, Summands};

/// Lengths around the ends of blocks and the bound from which on ranks sum parts, and more than MPI buffers.
const LENGTHS: [usize; 9] = [0, 1, 7, 255, 257, 4096, 4099, 65_537, 140_001];

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng::with_seed(seed);
    (0..n).map(|_| (rng.f32() - 0.5) * (2.0_f32).powi(rng.i32(-20..20))).collect()
}

fn random_bytes(seed: u64, rank: usize, n: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed ^ rank as u64);
    (0..n).map(|_| rng.u8(..)).collect()
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

fn check_sums(group: &mut dyn Communicator) {
    let n_ranks = group.n_ranks();
    for n in LENGTHS {
        let of_ranks: Vec<_> = (0..n_ranks).map(|rank| numbers((rank * 1000 + n) as u64, n)).collect();
        let mut own = of_ranks[group.rank()].clone();
        group.all_reduce(Summands::F32(&mut own), soon()).expect("nobody is lost");
        let bits: Vec<u32> = own.iter().map(|x| x.to_bits()).collect();
        let expected: Vec<u32> = (0..n).map(|i| tree(&of_ranks, i).to_bits()).collect();
        assert!(bits == expected, "{n} elements over {n_ranks} ranks");
    }
    // 1 + 2^-8 + 2^-8 …: rounded after each sum it would stay 1.
    let mut own = vec![if group.rank() == 0 { 0x3F80 } else { 0x3B80 }; 9001];
    group.all_reduce(Summands::Bf16(&mut own), soon()).expect("nobody is lost");
    let sum = 1.0 + (n_ranks - 1) as f32 / 256.0;
    let nearest_even = if n_ranks == 2 { 0x3F80 } else { (sum.to_bits() >> 16) as u16 };
    assert!(n_ranks > 3 || own.iter().all(|&bits| bits == nearest_even), "bfloat16 over {n_ranks} ranks");
}

fn check_bytes(group: &mut dyn Communicator, seed: u64) {
    let (rank, n_ranks) = (group.rank(), group.n_ranks());
    for scale in [0, 1, 13, 100_000, 300_000] {
        let lengths: Vec<usize> = (0..n_ranks).map(|rank| rank * scale).collect();
        let own = random_bytes(seed, rank, rank * scale);
        let expected: Vec<u8> =
            (0..n_ranks).flat_map(|rank| random_bytes(seed, rank, rank * scale)).collect();
        let mut all = vec![0; expected.len()];
        group.all_gather(&own, &lengths, &mut all, soon()).expect("all are there");
        assert!(all == expected, "seed {seed}, {scale} bytes a rank");
        let root = scale % n_ranks;
        let mut at_root = if rank == root { vec![0; all.len()] } else { Vec::new() };
        group.gather(root, &own, &lengths, &mut at_root, soon()).expect("all are there");
        assert!(at_root == if rank == root { expected } else { Vec::new() }, "seed {seed}");
        let mut copy = if rank == root { random_bytes(seed, root, scale) } else { vec![0; scale] };
        group.broadcast(root, &mut copy, soon()).expect("all are there");
        assert!(copy == random_bytes(seed, root, scale), "seed {seed}");
        group.barrier(soon()).expect("all are there");
    }
}

/// Messages around the ring of ranks. All send first, more than MPI buffers: a sender does not wait for its
/// reader as long as there is room.
fn check_messages(group: &mut dyn Communicator, seed: u64) {
    let (rank, n_ranks) = (group.rank(), group.n_ranks());
    let (next, before) = ((rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks);
    for n in [0, 3, 2000, 3_000_001, 50, 20_000_003, 7] {
        group.send_message(next, &random_bytes(seed, rank, n), soon()).expect("it is read");
        let received = group.receive_message(before, n, soon()).expect("it was sent");
        assert!(received == random_bytes(seed, before, n), "seed {seed}, {n} bytes");
    }
    let refused = group.receive(before, &mut [0], Deadline::within(Duration::from_millis(50)));
    let in_time = |result: &Result<(), CommError>| matches!(result, Err(CommError::PeerLost { rank, how: Loss::TimedOut }) if *rank == before);
    assert!(in_time(&refused), "{refused:?}");
    assert!(group.usage().n_operations > 20 && group.usage().n_bytes > 3_000_001);
}

fn main() {
    let job = MpiJob::join(|error| {
        eprintln!("error: {error}");
        std::process::exit(3)
    });
    let job = job.expect("an MPI library");
    let (rank, n_ranks) = (job.rank(), job.n_ranks());
    assert!(n_ranks > 1, "run by mpirun -n N");
    let mut all = job.all();
    // The same on all ranks.
    let mut seed = fastrand::u64(..).to_le_bytes();
    all.broadcast(0, &mut seed, soon()).expect("all are there");
    let seed = u64::from_le_bytes(seed);
    check_sums(&mut *all);
    check_bytes(&mut *all, seed);
    check_messages(&mut *all, seed);
    // Groups do not disturb each other, on threads of their own.
    let first: Vec<usize> = (0..n_ranks - 1).collect();
    let last: Vec<usize> = (1..n_ranks).rev().collect();
    let groups = [job.group(1, &first), job.group(2, &last)];
    std::thread::scope(|scope| {
        for mut group in groups.into_iter().flatten() {
            scope.spawn(move || {
                check_sums(&mut *group);
                check_bytes(&mut *group, seed);
            });
        }
    });
    all.barrier(soon()).expect("all are there");
    if rank == 0 {
        println!("{n_ranks} ranks agree (seed {seed})");
    } else {
        let ended = all.receive(0, &mut [0], Deadline::NEVER);
        assert!(matches!(ended, Err(CommError::PeerLost { rank: 0, how: Loss::Ended })), "{ended:?}");
    }
    job.leave();
}
