//! Ranks that end, stop or do not come: whoever waits for them is told.

use std::time::Duration;

use throng_comm::shared::SharedHost;
use throng_comm::{CommError, Communicator, Deadline, Loss, Summands};

use super::{run_ranks, soon};

fn loss<T: std::fmt::Debug>(result: Result<T, CommError>) -> (usize, Loss) {
    match result {
        Err(CommError::PeerLost { rank, how }) => (rank, how),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_ends_is_lost_to_all() {
    let lost = run_ranks(3, &[], |rank, membership| {
        let mut group = membership.all();
        let mut sums = vec![1.0; 10];
        group.all_reduce(Summands::F32(&mut sums), soon()).expect("all are there");
        if rank == 1 {
            return None;
        }
        Some(loss(group.all_reduce(Summands::F32(&mut sums), soon())))
    });
    // Rank 2 may hear of rank 0 first, which ended because of rank 1.
    assert_eq!(lost[0], Some((1, Loss::Ended)));
    assert!(lost[1].is_none() && matches!(lost[2], Some((0 | 1, Loss::Ended))), "{lost:?}");
}

#[test]
fn a_message_that_was_sent_before_the_end_is_received() {
    let received = run_ranks(2, &[], |rank, membership| {
        let mut group = membership.all();
        if rank == 0 {
            group.send_message(1, b"the last word", soon()).expect("there is room");
            return Vec::new();
        }
        let message = group.receive_message(0, 100, soon()).expect("it was sent");
        assert_eq!(loss(group.receive_message(0, 100, Deadline::NEVER)), (0, Loss::Ended));
        message
    });
    assert_eq!(received[1], b"the last word");
}

#[test]
fn the_end_of_a_process_is_told_by_whoever_sees_it() {
    let host = SharedHost::create(2, &[]).expect("there is memory");
    let mut group = host.join(0).expect("a thread").all();
    let waiting = std::thread::spawn(move || loss(group.barrier(Deadline::NEVER)));
    host.note_end(1);
    assert_eq!(waiting.join().expect("no panic"), (1, Loss::Ended));
}

#[test]
fn a_rank_that_does_not_come_is_lost_at_the_deadline() {
    let host = SharedHost::create(2, &[]).expect("there is memory");
    let mut group = host.join(0).expect("a thread").all();
    let there = host.join(1).expect("a thread");
    assert_eq!(loss(group.barrier(Deadline::within(Duration::from_millis(1)))), (1, Loss::TimedOut));
    drop(there);
}

#[test]
fn long_messages_are_refused() {
    run_ranks(2, &[], |rank, membership| {
        let mut group = membership.all();
        if rank == 0 {
            group.send_message(1, &[0; 101], soon()).expect("there is room");
        } else {
            let refused = group.receive_message(0, 100, soon());
            assert!(matches!(refused, Err(CommError::TooLong { n_bytes: 101, max_bytes: 100 })));
        }
    });
}
