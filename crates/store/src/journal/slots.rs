//! The format of a journal: slots of a fixed size, each with an entry's numbers at fixed offsets and its
//! names as JSON. Does not know which slots are in use.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{MAX_SLOTS, Slot};
use crate::ledger::{LedgerEntry, Outcome};

/// Bytes of a slot; an entry with names of usual length fits.
pub(super) const SLOT_BYTES: usize = 2048;
/// Maximum bytes of each text of an entry that would not fit into a slot otherwise: seven such texts fit,
/// even if each byte is escaped as two.
pub(super) const MAX_SHORT_TEXT_BYTES: usize = 96;
/// Layout of a slot: one byte each for the state and the outcome, eight for each number, two for the length
/// of the JSON.
const STATE_AT: usize = 0;
const OUTCOME_AT: usize = 1;
pub(super) const PROMPT_AT: usize = 8;
const CACHED_AT: usize = 16;
const GENERATED_AT: usize = 24;
pub(super) const TIME_AT: usize = 32;
const LATENCY_AT: usize = 40;
const LENGTH_AT: usize = 48;
const ENTRY_AT: usize = 56;

pub(super) const FREE: u8 = 0;
pub(super) const RUNNING: u8 = 1;
pub(super) const ENDED: u8 = 2;
pub(super) const SET_ASIDE: u8 = 3;

/// Outcomes by their stored code.
const OUTCOMES: [Outcome; 5] =
    [Outcome::Stop, Outcome::Length, Outcome::Abort, Outcome::Error, Outcome::Interrupted];

/// The entry of a slot; `None` if it is free or damaged.
pub(super) fn entry_in(bytes: &[u8; SLOT_BYTES]) -> Option<LedgerEntry> {
    let state = bytes[STATE_AT];
    if ![RUNNING, ENDED, SET_ASIDE].contains(&state) {
        return None;
    }
    let length = usize::from(u16::from_le_bytes([bytes[LENGTH_AT], bytes[LENGTH_AT + 1]]));
    let entry: LedgerEntry = serde_json::from_slice(bytes.get(ENTRY_AT..ENTRY_AT + length)?).ok()?;
    let outcome = *OUTCOMES.get(usize::from(bytes[OUTCOME_AT]))?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|idx| bytes[at + idx]));
    Some(LedgerEntry {
        at_unix_s: number(TIME_AT),
        prompt_tokens: number(PROMPT_AT),
        cached_tokens: number(CACHED_AT),
        generated_tokens: number(GENERATED_AT),
        latency_ms: number(LATENCY_AT),
        outcome: if state == RUNNING { Outcome::Interrupted } else { outcome },
        ..entry
    })
}

/// Whether a slot is marked as free.
pub(super) fn is_free(bytes: &[u8; SLOT_BYTES]) -> bool {
    bytes[STATE_AT] == FREE
}

pub(super) fn n_slots(file: &File) -> io::Result<u32> {
    let n = file.metadata()?.len().div_ceil(SLOT_BYTES as u64);
    Ok(u32::try_from(n).unwrap_or(u32::MAX).min(MAX_SLOTS))
}

pub(super) fn offset(slot: Slot) -> u64 {
    u64::from(slot.0) * SLOT_BYTES as u64
}

/// Writes a whole slot.
pub(super) fn write(file: &File, slot: Slot, state: u8, entry: &LedgerEntry) -> io::Result<()> {
    let mut json = serde_json::to_vec(entry)?;
    let mut bytes = [0; SLOT_BYTES];
    if json.len() > SLOT_BYTES - ENTRY_AT {
        // Truncated names are better than a lost entry.
        json = serde_json::to_vec(&entry.with_texts_of(MAX_SHORT_TEXT_BYTES))?;
    }
    bytes[ENTRY_AT..ENTRY_AT + json.len()].copy_from_slice(&json);
    bytes[..LENGTH_AT].copy_from_slice(&numbers(state, entry));
    bytes[LENGTH_AT..LENGTH_AT + 2].copy_from_slice(&(json.len() as u16).to_le_bytes());
    // One write within one page: a killed process has written all of it or nothing.
    file.write_all_at(&bytes[..ENTRY_AT + json.len()], offset(slot))
}

/// The bytes before the length of the JSON.
pub(super) fn numbers(state: u8, entry: &LedgerEntry) -> [u8; LENGTH_AT] {
    let mut bytes = [0; LENGTH_AT];
    bytes[STATE_AT] = state;
    let outcome = OUTCOMES.iter().position(|known| *known == entry.outcome);
    bytes[OUTCOME_AT] = outcome.unwrap_or_default() as u8;
    for (at, number) in [
        (PROMPT_AT, entry.prompt_tokens),
        (CACHED_AT, entry.cached_tokens),
        (GENERATED_AT, entry.generated_tokens),
        (TIME_AT, entry.at_unix_s),
        (LATENCY_AT, entry.latency_ms),
    ] {
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

pub(super) fn write_state(file: &File, slot: Slot, state: u8) -> io::Result<()> {
    file.write_all_at(&[state], offset(slot) + STATE_AT as u64)
}

/// Reads the bytes of a slot; zeros past the end of the file.
pub(super) fn read(file: &File, slot: Slot) -> io::Result<[u8; SLOT_BYTES]> {
    let (mut bytes, mut n_read) = ([0; SLOT_BYTES], 0);
    while n_read < bytes.len() {
        match file.read_at(&mut bytes[n_read..], offset(slot) + n_read as u64)? {
            0 => break,
            n => n_read += n,
        }
    }
    Ok(bytes)
}

/// The number of slots, at most `wanted`, that may be reserved: they take at most a quarter of the free
/// disk space, so that a small disk has room for its database.
pub(super) fn affordable(file: &File, wanted: u32) -> u32 {
    #[cfg(target_os = "linux")]
    if let Ok(disk) = rustix::fs::fstatvfs(file) {
        let slots = disk.f_bavail.saturating_mul(disk.f_frsize) / 4 / SLOT_BYTES as u64;
        return wanted.min(u32::try_from(slots).unwrap_or(u32::MAX));
    }
    wanted
}

/// Reserves disk space for the first slots without changing their content.
pub(super) fn reserve(file: &File, n_slots: u32) -> io::Result<()> {
    let n_bytes = u64::from(n_slots) * SLOT_BYTES as u64;
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, n_bytes) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = [0; 1 << 16];
    let mut at = file.metadata()?.len();
    while at < n_bytes {
        let n = zeros.len().min(usize::try_from(n_bytes - at).unwrap_or(zeros.len()));
        file.write_all_at(&zeros[..n], at)?;
        at += n as u64;
    }
    Ok(())
}
