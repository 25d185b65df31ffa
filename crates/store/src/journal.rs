//! Entries of the ledger on their way to the database, in a file of this machine: what requests use is written here while
//! they run, so that neither the end of the process nor a database that is gone loses it. Does not know the database.
//!
//! The file is a table of slots: numbers at fixed places, and the entry as JSON as it was when the request began. A request takes a
//! slot when it begins, counts its tokens in it, and marks it as ended; once the entry is in the database, the slot is free again. Whoever opens the file takes the entries of a process that has died:
//! those of requests that ran then are marked as interrupted. An entry that was written to the database already is written again
//! under the same id, which changes nothing. Writes reach the kernel, not necessarily the disk: a crash of the machine may
//! lose the entries that are not in the database yet.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ledger::{LedgerEntry, Outcome};

/// Bytes of a slot; an entry with the longest names fits.
const SLOT_BYTES: usize = 2048;
/// Most slots, running requests included: 512 MiB on disk.
const MAX_SLOTS: u32 = 262_144;
/// Most processes that share a folder.
const MAX_FILES: usize = 64;
/// Where in a slot what stands: a byte each for the state and the outcome, eight for each number, two for the length of the JSON.
const STATE_AT: usize = 0;
const OUTCOME_AT: usize = 1;
const PROMPT_AT: usize = 8;
const CACHED_AT: usize = 16;
const GENERATED_AT: usize = 24;
const TIME_AT: usize = 32;
const LATENCY_AT: usize = 40;
const LENGTH_AT: usize = 48;
const ENTRY_AT: usize = 56;

const FREE: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;

/// An outcome is stored as its place here.
const OUTCOMES: [Outcome; 5] =
    [Outcome::Stop, Outcome::Length, Outcome::Abort, Outcome::Error, Outcome::Interrupted];

/// A place in a [`Journal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

/// The file. It is locked for as long as this lives.
#[derive(Debug)]
pub struct Journal {
    file: File,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    n_made: u32,
    free: Vec<Slot>,
    ended: VecDeque<Slot>,
}

impl Journal {
    /// Takes the first journal of this stem (`STEM-0`, `STEM-1`, …) that no living process has, and the entries of all
    /// that dead ones have left.
    ///
    /// # Errors
    /// When a file cannot be made or read, and when there are too many.
    pub fn open(stem: &Path) -> io::Result<Self> {
        let mut journal: Option<Self> = None;
        for number in 0..MAX_FILES {
            let path = PathBuf::from(format!("{}-{number}", stem.display()));
            if journal.is_some() && !path.exists() {
                break;
            }
            let Some(file) = lock(&path)? else { continue };
            match &journal {
                None => journal = Some(Self::over(file)?),
                // Written before it is taken away, so that a crash in between doubles and loses nothing.
                Some(journal) => {
                    left_entries(&file)?.iter().try_for_each(|entry| journal.end(None, entry))?;
                    file.set_len(0)?;
                }
            }
        }
        journal.ok_or_else(|| io::Error::other(format!("{MAX_FILES} processes have a journal already")))
    }

    /// The journal in this file, with what a dead process has left in it.
    fn over(file: File) -> io::Result<Self> {
        let mut slots = Slots { n_made: n_slots(&file)?, ..Slots::default() };
        for slot in (0..slots.n_made).map(Slot) {
            match entry_in(&read(&file, slot)?) {
                Some(entry) => {
                    write(&file, slot, ENDED, &entry)?;
                    slots.ended.push_back(slot);
                }
                None => {
                    write_state(&file, slot, FREE)?;
                    slots.free.push(slot);
                }
            }
        }
        Ok(Self { file, slots: Mutex::new(slots) })
    }

    /// Notes a request that has begun.
    ///
    /// # Errors
    /// When all slots are in use or the file cannot be written.
    pub fn begin(&self, entry: &LedgerEntry) -> io::Result<Slot> {
        let slot = self.take_slot()?;
        write(&self.file, slot, RUNNING, entry).inspect_err(|_| self.slots().free.push(slot))?;
        Ok(slot)
    }

    /// Notes the tokens of a running request.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn count(&self, slot: Slot, prompt: u64, cached: u64, generated: u64) -> io::Result<()> {
        let mut counts = [0; TIME_AT - PROMPT_AT];
        for (bytes, count) in counts.chunks_exact_mut(8).zip([prompt, cached, generated]) {
            bytes.copy_from_slice(&count.to_le_bytes());
        }
        self.file.write_all_at(&counts, offset(slot) + PROMPT_AT as u64)
    }

    /// Notes a request that has ended; its entry waits for the database. Its names are those with which it took its slot;
    /// without a slot it takes one now.
    ///
    /// # Errors
    /// When all slots are in use or the file cannot be written: the entry is lost.
    pub fn end(&self, slot: Option<Slot>, entry: &LedgerEntry) -> io::Result<()> {
        let slot = match slot {
            Some(slot) => {
                self.file.write_all_at(&numbers(ENDED, entry), offset(slot))?;
                slot
            }
            None => {
                let slot = self.take_slot()?;
                write(&self.file, slot, ENDED, entry).inspect_err(|_| self.slots().free.push(slot))?;
                slot
            }
        };
        self.slots().ended.push_back(slot);
        Ok(())
    }

    /// The entries of the `n` slots that have waited for the database for longest; how many slots there are may be less, and
    /// is the first result.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn waiting(&self, n: usize) -> io::Result<(usize, Vec<LedgerEntry>)> {
        let slots: Vec<Slot> = self.slots().ended.iter().take(n).copied().collect();
        let mut entries = Vec::with_capacity(slots.len());
        for slot in &slots {
            entries.extend(entry_in(&read(&self.file, *slot)?));
        }
        Ok((slots.len(), entries))
    }

    /// How many entries wait for the database.
    pub fn n_waiting(&self) -> usize {
        self.slots().ended.len()
    }

    /// Frees the `n` oldest slots that waited for the database, whose entries are in it now.
    ///
    /// # Errors
    /// When the file cannot be written: the entries are written to the database again after a restart.
    pub fn forget(&self, n: usize) -> io::Result<()> {
        for _ in 0..n {
            let Some(slot) = self.slots().ended.pop_front() else { break };
            let freed = write_state(&self.file, slot, FREE);
            self.slots().free.push(slot);
            freed?;
        }
        Ok(())
    }

    fn take_slot(&self) -> io::Result<Slot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.free.pop() {
            return Ok(slot);
        }
        if slots.n_made == MAX_SLOTS {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "all slots of the journal are in use"));
        }
        slots.n_made += 1;
        Ok(Slot(slots.n_made - 1))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens and locks a file; `None` if another process has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The entries that a dead process has left in its file.
fn left_entries(file: &File) -> io::Result<Vec<LedgerEntry>> {
    let slots = (0..n_slots(file)?).map(Slot);
    let entries = slots.map(|slot| Ok(entry_in(&read(file, slot)?)));
    Ok(entries.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The entry of a slot; `None` if it is free or damaged.
fn entry_in(bytes: &[u8; SLOT_BYTES]) -> Option<LedgerEntry> {
    let state = bytes[STATE_AT];
    if state != RUNNING && state != ENDED {
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

fn n_slots(file: &File) -> io::Result<u32> {
    let n = file.metadata()?.len().div_ceil(SLOT_BYTES as u64);
    Ok(u32::try_from(n).unwrap_or(u32::MAX).min(MAX_SLOTS))
}

fn offset(slot: Slot) -> u64 {
    u64::from(slot.0) * SLOT_BYTES as u64
}

/// A whole slot.
fn write(file: &File, slot: Slot, state: u8, entry: &LedgerEntry) -> io::Result<()> {
    let json = serde_json::to_vec(entry)?;
    let mut bytes = [0; SLOT_BYTES];
    let room = bytes[ENTRY_AT..].get_mut(..json.len());
    let room =
        room.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an entry is longer than a slot"))?;
    room.copy_from_slice(&json);
    bytes[..LENGTH_AT].copy_from_slice(&numbers(state, entry));
    bytes[LENGTH_AT..LENGTH_AT + 2].copy_from_slice(&(json.len() as u16).to_le_bytes());
    // One write within one page: a process that is killed has written all of it or nothing.
    file.write_all_at(&bytes[..ENTRY_AT + json.len()], offset(slot))
}

/// What stands before the length of the JSON.
fn numbers(state: u8, entry: &LedgerEntry) -> [u8; LENGTH_AT] {
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

fn write_state(file: &File, slot: Slot, state: u8) -> io::Result<()> {
    file.write_all_at(&[state], offset(slot) + STATE_AT as u64)
}

/// The bytes of a slot; zeros past the end of the file.
fn read(file: &File, slot: Slot) -> io::Result<[u8; SLOT_BYTES]> {
    let (mut bytes, mut n_read) = ([0; SLOT_BYTES], 0);
    while n_read < bytes.len() {
        match file.read_at(&mut bytes[n_read..], offset(slot) + n_read as u64)? {
            0 => break,
            n => n_read += n,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Prices;

    fn entry(id: usize) -> LedgerEntry {
        LedgerEntry {
            id: format!("{id:032x}"),
            request_id: "req_1".to_owned(),
            at_unix_s: 1,
            organisation_id: String::new(),
            project_id: String::new(),
            key_id: "key_1".to_owned(),
            user: String::new(),
            model: "m".to_owned(),
            prompt_tokens: 7,
            cached_tokens: 0,
            generated_tokens: 0,
            prices: Prices::default(),
            latency_ms: 0,
            outcome: Outcome::Stop,
        }
    }

    #[test]
    fn what_a_dead_process_has_left_is_taken_up_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let stem = folder.path().join("journal");
        let (first, second) = (Journal::open(&stem).expect("made"), Journal::open(&stem).expect("made"));
        let running = first.begin(&entry(1)).expect("room");
        first.count(running, 7, 2, 5).expect("written");
        let ended = first.begin(&entry(2)).expect("room");
        first.end(Some(ended), &LedgerEntry { generated_tokens: 9, ..entry(2) }).expect("written");
        let written = first.begin(&entry(3)).expect("room");
        first.end(Some(written), &entry(3)).expect("written");
        second.end(None, &entry(4)).expect("room");
        assert_eq!(first.waiting(10).expect("read").1[0].generated_tokens, 9);
        // Closed without a word, as by a kill.
        drop((first, second));

        let third = Journal::open(&stem).expect("made");
        let (n, left) = third.waiting(10).expect("read");
        assert_eq!(n, 4);
        let seen = |at: usize| (left[at].cached_tokens, left[at].generated_tokens, left[at].outcome);
        assert_eq!(
            left.iter().map(|entry| entry.id.as_str()).collect::<std::collections::BTreeSet<_>>().len(),
            4
        );
        assert_eq!((seen(0), seen(1)), ((2, 5, Outcome::Interrupted), (0, 9, Outcome::Stop)));
        third.forget(n).expect("written");
        drop(third);
        assert_eq!(Journal::open(&stem).expect("made").n_waiting(), 0);
    }

    #[test]
    fn damaged_slots_are_free_and_slots_are_used_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let stem = folder.path().join("journal");
        std::fs::write(folder.path().join("journal-0"), vec![2; 3 * SLOT_BYTES + 5]).expect("written");
        let journal = Journal::open(&stem).expect("opened");
        assert_eq!(journal.n_waiting(), 0);
        for round in 0..50 {
            let slot = journal.begin(&entry(round)).expect("room");
            journal.end(Some(slot), &entry(round)).expect("written");
            assert_eq!(journal.waiting(5).expect("read").1, [entry(round)]);
            journal.forget(1).expect("written");
        }
        assert_eq!(n_slots(&journal.file).expect("read"), 4);
        let long = LedgerEntry { model: "x".repeat(SLOT_BYTES), ..entry(1) };
        assert!(journal.begin(&long).is_err() && journal.end(None, &long).is_err());
    }
}
