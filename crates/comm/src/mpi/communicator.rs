//! Collectives over MPI. Each rank sends its summands, or parts of them, and adds those of all ranks itself
//! in the order of the trait: MPI's own sums have an order that depends on the library and on the size. Does
//! not know how ranks are placed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use mpi::datatype::Equivalence;

use super::exchange::{self, Exchange};
use super::members::Members;
use super::outbox::Outbox;
use crate::sum::{BLOCK, from_bf16, sum_over, to_bf16};
use crate::{CommError, Communicator, Deadline, Summands, Usage};

/// Elements up to which each rank receives all summands; of more, each rank sums a part and sends the sums.
const MOST_AT_ONCE: usize = 4096;
/// Bytes up to which MPI buffers a message itself, with any transport.
const EAGER_BYTES: usize = 2048;

/// A rank's end of a group over MPI.
#[derive(Debug)]
pub(super) struct MpiCommunicator {
    job: Arc<Members>,
    /// Index of this rank in the group.
    member: usize,
    /// Ranks of the members in the job.
    members: Vec<usize>,
    collective_tag: i32,
    message_tag: i32,
    /// Messages that wait for their readers, by member.
    outboxes: HashMap<usize, Outbox>,
    usage: Usage,
}

/// Numbers that are summed.
trait Number: Copy + Default + Equivalence {
    fn widen(numbers: &[Self], out: &mut [f32]);
    fn of_f32(x: f32) -> Self;
}

impl Number for f32 {
    fn widen(numbers: &[Self], out: &mut [f32]) {
        out.copy_from_slice(numbers);
    }

    fn of_f32(x: f32) -> Self {
        x
    }
}

/// Elements in bfloat16.
impl Number for u16 {
    fn widen(numbers: &[Self], out: &mut [f32]) {
        out.iter_mut().zip(numbers).for_each(|(x, bits)| *x = from_bf16(*bits));
    }

    fn of_f32(x: f32) -> Self {
        to_bf16(x)
    }
}

impl MpiCommunicator {
    pub(super) fn new(job: &Arc<Members>, group_idx: usize, members: Vec<usize>) -> Option<Self> {
        let member = members.iter().position(|&member| member == job.rank)?;
        let collective_tag = 2 * group_idx as i32;
        Some(Self {
            job: Arc::clone(job),
            member,
            members,
            collective_tag,
            message_tag: collective_tag + 1,
            outboxes: HashMap::new(),
            usage: Usage::default(),
        })
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.member;
        (0..self.members.len()).filter(move |&member| member != own)
    }

    fn exchange<'a, T: Equivalence>(
        &self,
        sends: Vec<(usize, &'a [T])>,
        receives: Vec<(usize, &'a mut [T])>,
        deadline: Deadline,
    ) -> Result<(), CommError> {
        let rank = |member: usize| self.members[member];
        let sends = sends.into_iter().map(|(member, numbers)| (rank(member), numbers)).collect();
        let receives = receives.into_iter().map(|(member, numbers)| (rank(member), numbers)).collect();
        self.job.active(|| {
            Exchange { sends, receives }.run(self.collective_tag, &self.job, deadline);
            Ok(())
        })
    }

    fn reduce<T: Number>(&self, numbers: &mut [T], deadline: Deadline) -> Result<(), CommError> {
        let n_members = self.members.len();
        if numbers.len() <= MOST_AT_ONCE {
            let mut theirs = vec![T::default(); numbers.len() * n_members];
            self.gather_parts(|_| &*numbers, &mut theirs, numbers.len(), deadline)?;
            self.sum(&theirs, numbers);
            return Ok(());
        }
        let bound = |member: usize| member * numbers.len() / n_members;
        let bounds: Vec<usize> = (0..=n_members).map(bound).collect();
        let part = |member: usize| bounds[member]..bounds[member + 1];
        let own = part(self.member);
        let mut theirs = vec![T::default(); own.len() * n_members];
        self.gather_parts(|member| &numbers[part(member)], &mut theirs, own.len(), deadline)?;
        let mut sums = numbers[own.clone()].to_vec();
        self.sum(&theirs, &mut sums);
        numbers[own].copy_from_slice(&sums);
        let sends = self.others().map(|member| (member, &*sums)).collect();
        let receives = self.parts_of_others(numbers, bounds.windows(2).map(|pair| pair[1] - pair[0]));
        self.exchange(sends, receives, deadline)
    }

    /// Sends each other rank its part, and receives this rank's part of each: `theirs` is `[members, n]`.
    fn gather_parts<'a, T: Number>(
        &self,
        part: impl Fn(usize) -> &'a [T],
        theirs: &'a mut [T],
        n: usize,
        deadline: Deadline,
    ) -> Result<(), CommError> {
        theirs[self.member * n..][..n].copy_from_slice(part(self.member));
        let sends = self.others().map(|member| (member, part(member))).collect();
        let receives = self.parts_of_others(theirs, self.members.iter().map(|_| n));
        self.exchange(sends, receives, deadline)
    }

    /// Adjacent parts of these lengths, without the own one.
    fn parts_of_others<'a, T>(
        &self,
        mut rest: &'a mut [T],
        lengths: impl Iterator<Item = usize>,
    ) -> Vec<(usize, &'a mut [T])> {
        let mut parts = Vec::with_capacity(self.members.len());
        for (member, length) in lengths.enumerate() {
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            if member != self.member {
                parts.push((member, part));
            }
        }
        parts
    }

    /// Sums `[members, n]` summands in the order of the trait.
    fn sum<T: Number>(&self, summands: &[T], sums: &mut [T]) {
        let n = sums.len();
        let mut block = [0.0; BLOCK];
        for (i, sums) in sums.chunks_mut(BLOCK).enumerate() {
            let block = &mut block[..sums.len()];
            sum_over(0..self.members.len(), block, &mut |member, out| {
                T::widen(&summands[member * n + i * BLOCK..][..out.len()], out);
            });
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum = T::of_f32(*x));
        }
    }

    /// Sends this rank's bytes to `readers`, and receives those of all ranks if `out` is given.
    fn gather_bytes(
        &mut self,
        (own, readers): (&[u8], Range<usize>),
        lengths: &[usize],
        out: Option<&mut [u8]>,
        deadline: Deadline,
    ) -> Result<(), CommError> {
        assert!(lengths.len() == self.members.len() && lengths[self.member] == own.len(), "its own length");
        let n_all = lengths.iter().sum::<usize>();
        assert!(out.as_ref().is_none_or(|out| out.len() == n_all), "room for the bytes of all ranks");
        self.counted(if out.is_some() { n_all } else { own.len() }, |group| {
            let sends = group.others().filter(|member| readers.contains(member)).map(|member| (member, own));
            let sends = sends.collect();
            let receives = out.map_or_else(Vec::new, |out| {
                let before = lengths[..group.member].iter().sum::<usize>();
                out[before..][..own.len()].copy_from_slice(own);
                group.parts_of_others(out, lengths.iter().copied())
            });
            group.exchange(sends, receives, deadline)
        })
    }

    /// Counts an operation.
    fn counted<T>(
        &mut self,
        n_bytes: usize,
        run: impl FnOnce(&mut Self) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        let begun = Instant::now();
        let result = run(self);
        self.usage.n_operations += 1;
        self.usage.n_bytes += n_bytes as u64;
        self.usage.took += begun.elapsed();
        result
    }

    /// The messages to a member.
    fn outbox(&mut self, member: usize) -> Result<&Outbox, CommError> {
        Ok(match self.outboxes.entry(member) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Outbox::open(self.members[member], self.message_tag, &self.job)?)
            }
        })
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.member
    }

    fn n_ranks(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, summands: Summands<'_>, deadline: Deadline) -> Result<(), CommError> {
        if self.members.len() == 1 {
            return Ok(());
        }
        match summands {
            Summands::F32(numbers) => {
                self.counted(size_of_val(numbers), |group| group.reduce(numbers, deadline))
            }
            Summands::Bf16(numbers) => {
                self.counted(size_of_val(numbers), |group| group.reduce(numbers, deadline))
            }
        }
    }

    fn all_gather(
        &mut self,
        own: &[u8],
        lengths: &[usize],
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), CommError> {
        let readers = 0..self.members.len();
        self.gather_bytes((own, readers), lengths, Some(out), deadline)
    }

    fn gather(
        &mut self,
        root: usize,
        own: &[u8],
        lengths: &[usize],
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), CommError> {
        let out = (self.member == root).then_some(out);
        self.gather_bytes((own, root..root + 1), lengths, out, deadline)
    }

    fn broadcast(&mut self, root: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError> {
        self.counted(bytes.len(), |group| {
            if group.member == root {
                let sends = group.others().map(|member| (member, &*bytes)).collect();
                return group.exchange(sends, Vec::new(), deadline);
            }
            group.exchange(Vec::new(), vec![(root, bytes)], deadline)
        })
    }

    fn send(&mut self, to: usize, bytes: &[u8], deadline: Deadline) -> Result<(), CommError> {
        self.counted(bytes.len(), |group| {
            let tag = group.message_tag;
            if bytes.len() <= EAGER_BYTES && group.outboxes.get(&to).is_none_or(Outbox::is_empty) {
                let sends = vec![(group.members[to], bytes)];
                return group.job.active(|| {
                    Exchange { sends, receives: Vec::new() }.run(tag, &group.job, deadline);
                    Ok(())
                });
            }
            group.outbox(to)?.push(bytes, deadline)
        })
    }

    fn receive(&mut self, from: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError> {
        self.counted(bytes.len(), |group| {
            let (rank, tag) = (group.members[from], group.message_tag);
            group.job.active(|| exchange::receive(rank, bytes, tag, &group.job, deadline))
        })
    }

    fn barrier(&mut self, deadline: Deadline) -> Result<(), CommError> {
        self.counted(0, |group| {
            let mut theirs = vec![0_u8; group.members.len()];
            let sends = group.others().map(|member| (member, &[1][..])).collect();
            let receives = group.parts_of_others(&mut theirs, group.members.iter().map(|_| 1));
            group.exchange(sends, receives, deadline)
        })
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
