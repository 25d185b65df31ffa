//! Messages from one rank to another: a ring of words. Does not know groups.

use std::sync::atomic::AtomicU64;

use super::SharedHost;
use super::codec::{WORD, read_bytes, write_bytes};
use super::layout::MAILBOX_WORDS;
use super::lease::Watch;
use super::waiting::Counter;
use crate::{CommError, Deadline};

/// The ring from one rank to another.
struct Ring<'a> {
    words: &'a [AtomicU64],
    sent: Counter<'a>,
    taken: Counter<'a>,
}

impl<'a> Ring<'a> {
    fn between(host: &'a SharedHost, from: usize, to: usize) -> Self {
        let [sent, taken] = host.layout.mailbox_flags(from, to).map(|flags| Counter::at(host, flags));
        Self { words: &host.memory.words()[host.layout.mailbox(from, to)], sent, taken }
    }

    /// Words from count `count` on, up to the end of the ring.
    fn from(&self, count: u32) -> &'a [AtomicU64] {
        &self.words[count as usize % MAILBOX_WORDS..]
    }
}

/// A multiple of the ring's length, so that counters that wrap around keep their position in it.
const _: () = assert!((1_u64 << 32).is_multiple_of(MAILBOX_WORDS as u64), "counters wrap with the ring");

/// Sends bytes from rank `from`.
pub(super) fn send(
    host: &SharedHost,
    (from, to): (usize, usize),
    bytes: &[u8],
    watch: &mut Watch,
    deadline: Deadline,
) -> Result<(), CommError> {
    let ring = Ring::between(host, from, to);
    let mut sent = ring.sent.get();
    let mut rest = bytes;
    while !rest.is_empty() {
        let has_room = |taken: u32| sent.wrapping_sub(taken) < MAILBOX_WORDS as u32;
        let taken = ring.taken.wait(has_room, (host, to), watch, deadline)?;
        let room = MAILBOX_WORDS - sent.wrapping_sub(taken) as usize;
        let words = ring.from(sent);
        let n_words = rest.len().div_ceil(WORD).min(room).min(words.len());
        let (now, later) = rest.split_at(rest.len().min(n_words * WORD));
        write_bytes(&words[..n_words], now);
        sent = sent.wrapping_add(n_words as u32);
        ring.sent.set(sent);
        rest = later;
    }
    Ok(())
}

/// Receives bytes at rank `to`.
pub(super) fn receive(
    host: &SharedHost,
    (from, to): (usize, usize),
    bytes: &mut [u8],
    watch: &mut Watch,
    deadline: Deadline,
) -> Result<(), CommError> {
    let ring = Ring::between(host, from, to);
    let mut taken = ring.taken.get();
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = ring.sent.wait(|sent| sent != taken, (host, from), watch, deadline)?;
        let there = sent.wrapping_sub(taken) as usize;
        let words = ring.from(taken);
        let n_words = rest.len().div_ceil(WORD).min(there).min(words.len());
        let n_bytes = rest.len().min(n_words * WORD);
        let (now, later) = rest.split_at_mut(n_bytes);
        read_bytes(&words[..n_words], now);
        taken = taken.wrapping_add(n_words as u32);
        ring.taken.set(taken);
        rest = later;
    }
    Ok(())
}
