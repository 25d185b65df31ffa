//! Transfers that all proceed at the same time, by nonblocking calls that are polled. Does not know their
//! purpose.

use mpi::datatype::Equivalence;
use mpi::request::{LocalScope, Request, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination, Source};

use super::members::Members;
use super::waiting::Pauses;
use crate::{CommError, Deadline, Loss};

/// Maximum elements of one message: MPI counts them in 32 bits.
const MAX_ELEMENTS: usize = 1 << 24;

/// Transfers between this rank and others. The ranks are those in the job.
pub(super) struct Exchange<'a, T> {
    pub(super) sends: Vec<(usize, &'a [T])>,
    pub(super) receives: Vec<(usize, &'a mut [T])>,
}

/// A transfer in progress, with the rank at its other end.
type Pending<'a, 'b, T> = (usize, Request<'a, [T], &'b LocalScope<'a>>);

impl<'a, T: Equivalence> Exchange<'a, T> {
    /// Runs the transfers. Ends the process when a rank is lost or the deadline passes before all are
    /// complete.
    pub(super) fn run(self, tag: i32, members: &Members, deadline: Deadline) {
        let world = SimpleCommunicator::world();
        let Self { sends, receives } = self;
        scope(|scope: &LocalScope<'a>| {
            let mut pending: Vec<Pending<'a, '_, T>> = Vec::with_capacity(sends.len() + receives.len());
            for (from, to_fill) in receives {
                for part in to_fill.chunks_mut(MAX_ELEMENTS) {
                    let process = world.process_at_rank(from as i32);
                    pending.push((from, process.immediate_receive_into_with_tag(scope, part, tag)));
                }
            }
            for (to, bytes) in sends {
                for part in bytes.chunks(MAX_ELEMENTS) {
                    let process = world.process_at_rank(to as i32);
                    pending.push((to, process.immediate_send_with_tag(scope, part, tag)));
                }
            }
            complete(pending, members, deadline);
        });
    }
}

/// The transfer, unless it is complete.
fn unfinished<'a, 'b, T>((rank, request): Pending<'a, 'b, T>) -> Option<Pending<'a, 'b, T>> {
    Some((rank, request.test().err()?))
}

/// Polls transfers until all are complete.
fn complete<T: Equivalence>(mut pending: Vec<Pending<'_, '_, T>>, members: &Members, deadline: Deadline) {
    let pauses = Pauses::begin();
    loop {
        pending = pending.into_iter().filter_map(unfinished).collect();
        let Some(&(rank, _)) = pending.first() else { return };
        if !pauses.pause() {
            continue;
        }
        if let Some(&(rank, _)) = pending.iter().find(|(rank, _)| members.has_left(*rank)) {
            members.end_process(&CommError::PeerLost { rank, how: Loss::Ended });
        }
        if deadline.has_passed() {
            members.end_process(&CommError::PeerLost { rank, how: Loss::TimedOut });
        }
    }
}

/// Receives a message of rank `from` of the length of `bytes`. Ends the process only if the rank is lost in
/// the midst of the transfer.
///
/// # Errors
/// When the rank has left, or the deadline passes, before the message begins.
pub(super) fn receive(
    from: usize,
    bytes: &mut [u8],
    tag: i32,
    members: &Members,
    deadline: Deadline,
) -> Result<(), CommError> {
    let world = SimpleCommunicator::world();
    let process = world.process_at_rank(from as i32);
    for part in bytes.chunks_mut(MAX_ELEMENTS) {
        let pauses = Pauses::begin();
        let (message, status) = loop {
            // Before the look at the message: what was sent before the rank left is received.
            let has_left = members.has_left(from);
            if let Some(found) = process.immediate_matched_probe_with_tag(tag) {
                break found;
            }
            if has_left {
                return Err(CommError::PeerLost { rank: from, how: Loss::Ended });
            }
            if pauses.pause() {
                members.check_open()?;
                if deadline.has_passed() {
                    return Err(CommError::PeerLost { rank: from, how: Loss::TimedOut });
                }
            }
        };
        assert_eq!(
            status.count(u8::equivalent_datatype()) as usize,
            part.len(),
            "both ranks know the length"
        );
        scope(|scope| {
            complete(vec![(from, message.immediate_matched_receive_into(scope, part))], members, deadline)
        });
    }
    Ok(())
}
