//! Collectives over shared memory, in rounds. Does not know where the memory comes from.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::codec::{WORD, read_bytes, read_f32, read_u16, write_bytes, write_f32, write_u16};
use super::layout::SLOT_WORDS;
use super::lease::{Lease, Watch};
use super::waiting::{Counter, has_reached};
use super::{SharedHost, mailbox};
use crate::sum::{BLOCK, from_bf16, sum_over, to_bf16};
use crate::{CommError, Communicator, Deadline, Summands, Usage};

/// Elements up to which each rank reads all summands; of more, each rank sums a part and reads the sums of
/// the others.
const MOST_AT_ONCE: usize = 4096;
/// A part that a rank sums begins at a multiple of this many elements, the beginning of a word.
const PART_ALIGNMENT: usize = 4;

/// A rank's end of a group over shared memory.
#[derive(Debug)]
pub struct SharedCommunicator {
    host: Arc<SharedHost>,
    _lease: Arc<Lease>,
    group_idx: usize,
    /// Index of this rank in the group.
    member: usize,
    /// Ranks of the members among all ranks.
    members: Vec<usize>,
    /// Number of rounds that this rank has published.
    round: u32,
    watch: Watch,
    usage: Usage,
}

/// Numbers that are summed, in memory and as words of shared memory.
trait Number: Copy {
    /// Number of elements in a word.
    const PER_WORD: usize;

    fn write(words: &[AtomicU64], numbers: &[Self]);
    fn read(words: &[AtomicU64], numbers: &mut [Self]);
    fn read_as_f32(words: &[AtomicU64], numbers: &mut [f32]);
    fn of_f32(x: f32) -> Self;
}

impl Number for f32 {
    const PER_WORD: usize = 2;

    fn write(words: &[AtomicU64], numbers: &[Self]) {
        write_f32(words, numbers);
    }

    fn read(words: &[AtomicU64], numbers: &mut [Self]) {
        read_f32(words, numbers);
    }

    fn read_as_f32(words: &[AtomicU64], numbers: &mut [f32]) {
        read_f32(words, numbers);
    }

    fn of_f32(x: f32) -> Self {
        x
    }
}

/// Elements in bfloat16.
impl Number for u16 {
    const PER_WORD: usize = 4;

    fn write(words: &[AtomicU64], numbers: &[Self]) {
        write_u16(words, numbers);
    }

    fn read(words: &[AtomicU64], numbers: &mut [Self]) {
        read_u16(words, numbers);
    }

    fn read_as_f32(words: &[AtomicU64], numbers: &mut [f32]) {
        let mut bits = [0; BLOCK];
        let bits = &mut bits[..numbers.len()];
        read_u16(words, bits);
        numbers.iter_mut().zip(bits).for_each(|(x, bits)| *x = from_bf16(*bits));
    }

    fn of_f32(x: f32) -> Self {
        to_bf16(x)
    }
}

impl SharedCommunicator {
    pub(super) fn new(
        host: Arc<SharedHost>,
        lease: Arc<Lease>,
        group_idx: usize,
        rank: usize,
    ) -> Option<Self> {
        let members = host.layout.members(group_idx)?.to_vec();
        let member = members.iter().position(|&member| member == rank)?;
        let watch = Watch::new(host.layout.n_ranks());
        // A rank joins once, so all count from 0.
        let (round, usage) = (0, Usage::default());
        Some(Self { host, _lease: lease, group_idx, member, members, round, watch, usage })
    }

    fn rounds_of(&self, member: usize) -> [usize; 2] {
        self.host.layout.rounds(self.group_idx, member)
    }

    /// The slot of a member in the present round.
    fn slot(&self, member: usize) -> &[AtomicU64] {
        &self.host.memory.words()[self.host.layout.slot(self.group_idx, member, self.round as usize % 2)]
    }

    /// Waits until a member has published round `round`.
    fn wait_for(&mut self, member: usize, round: u32, deadline: Deadline) -> Result<(), CommError> {
        let flags = self.rounds_of(member);
        let counter = Counter::at(&self.host, flags);
        let peer = (&*self.host, self.members[member]);
        counter.wait(|there| has_reached(there, round), peer, &mut self.watch, deadline).map(drop)
    }

    fn wait_for_all(&mut self, round: u32, deadline: Deadline) -> Result<(), CommError> {
        let own = self.member;
        (0..self.members.len())
            .filter(|&member| member != own)
            .try_for_each(|member| self.wait_for(member, round, deadline))
    }

    /// Begins a round: after it the own slot may be written.
    fn begin(&mut self, deadline: Deadline) -> Result<(), CommError> {
        // Who has published the round before has read the one before that, which had this slot.
        self.wait_for_all(self.round, deadline)?;
        self.round = self.round.wrapping_add(1);
        Ok(())
    }

    /// Publishes the content of the own slot.
    fn publish(&self) {
        Counter::at(&self.host, self.rounds_of(self.member)).set(self.round);
    }

    /// Numbers of one round: each rank sums them all, or a part.
    fn reduce_chunk<T: Number>(&mut self, numbers: &mut [T], deadline: Deadline) -> Result<(), CommError> {
        let (n_members, n) = (self.members.len(), numbers.len());
        self.begin(deadline)?;
        T::write(self.slot(self.member), numbers);
        self.publish();
        self.wait_for_all(self.round, deadline)?;
        if n <= MOST_AT_ONCE {
            self.sum_blocks(0, numbers);
            return Ok(());
        }
        let bound = |member: usize| match member == n_members {
            true => n,
            false => member * n / n_members / PART_ALIGNMENT * PART_ALIGNMENT,
        };
        let own = bound(self.member)..bound(self.member + 1);
        self.sum_blocks(own.start, &mut numbers[own.clone()]);
        self.begin(deadline)?;
        T::write(&self.slot(self.member)[own.start / T::PER_WORD..], &numbers[own]);
        self.publish();
        self.wait_for_all(self.round, deadline)?;
        for member in (0..n_members).filter(|&member| member != self.member) {
            let part = bound(member)..bound(member + 1);
            T::read(&self.slot(member)[part.start / T::PER_WORD..], &mut numbers[part]);
        }
        Ok(())
    }

    /// Sums over all ranks of the elements from `first` on, which is the beginning of a word.
    fn sum_blocks<T: Number>(&self, first: usize, sums: &mut [T]) {
        let mut block = [0.0; BLOCK];
        for (i, sums) in sums.chunks_mut(BLOCK).enumerate() {
            let first_word = (first + i * BLOCK) / T::PER_WORD;
            let block = &mut block[..sums.len()];
            sum_over(0..self.members.len(), block, &mut |member, out| {
                T::read_as_f32(&self.slot(member)[first_word..], out);
            });
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum = T::of_f32(*x));
        }
    }

    fn reduce<T: Number>(&mut self, numbers: &mut [T], deadline: Deadline) -> Result<(), CommError> {
        let most = SLOT_WORDS * T::PER_WORD;
        numbers.chunks_mut(most).try_for_each(|chunk| self.reduce_chunk(chunk, deadline))
    }

    /// Publishes the bytes of this rank, and copies those of all ranks to `out`, if that is given.
    fn gather_bytes(
        &mut self,
        own: &[u8],
        lengths: &[usize],
        mut out: Option<&mut [u8]>,
        deadline: Deadline,
    ) -> Result<(), CommError> {
        assert!(lengths.len() == self.members.len() && lengths[self.member] == own.len(), "its own length");
        let (n_all, longest) = (lengths.iter().sum::<usize>(), lengths.iter().copied().max().unwrap_or(0));
        assert!(out.as_ref().is_none_or(|out| out.len() == n_all), "room for the bytes of all ranks");
        self.counted(if out.is_some() { n_all } else { own.len() }, |group| {
            for first in (0..longest).step_by(SLOT_WORDS * WORD) {
                let part = |length: usize| first.min(length)..(first + SLOT_WORDS * WORD).min(length);
                group.begin(deadline)?;
                write_bytes(group.slot(group.member), &own[part(own.len())]);
                group.publish();
                let Some(out) = &mut out else { continue };
                let mut begin = 0;
                for (member, &length) in lengths.iter().enumerate() {
                    let part = part(length);
                    let to = &mut out[begin + part.start..begin + part.end];
                    if member == group.member {
                        to.copy_from_slice(&own[part]);
                    } else {
                        group.wait_for(member, group.round, deadline)?;
                        read_bytes(group.slot(member), to);
                    }
                    begin += length;
                }
            }
            Ok(())
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
}

impl Communicator for SharedCommunicator {
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
        self.gather_bytes(own, lengths, Some(out), deadline)
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
        self.gather_bytes(own, lengths, out, deadline)
    }

    fn broadcast(&mut self, root: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError> {
        self.counted(bytes.len(), |group| {
            for part in bytes.chunks_mut(SLOT_WORDS * WORD) {
                group.begin(deadline)?;
                if group.member == root {
                    write_bytes(group.slot(root), part);
                    group.publish();
                } else {
                    group.publish();
                    group.wait_for(root, group.round, deadline)?;
                    read_bytes(group.slot(root), part);
                }
            }
            Ok(())
        })
    }

    fn send(&mut self, to: usize, bytes: &[u8], deadline: Deadline) -> Result<(), CommError> {
        let pair = (self.members[self.member], self.members[to]);
        self.counted(bytes.len(), |group| mailbox::send(&group.host, pair, bytes, &mut group.watch, deadline))
    }

    fn receive(&mut self, from: usize, bytes: &mut [u8], deadline: Deadline) -> Result<(), CommError> {
        let pair = (self.members[from], self.members[self.member]);
        self.counted(bytes.len(), |group| {
            mailbox::receive(&group.host, pair, bytes, &mut group.watch, deadline)
        })
    }

    fn barrier(&mut self, deadline: Deadline) -> Result<(), CommError> {
        self.counted(0, |group| {
            group.begin(deadline)?;
            group.publish();
            group.wait_for_all(group.round, deadline)
        })
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
