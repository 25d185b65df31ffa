//! Ledger entries on their way to the database, in a local file. The usage of requests is written here
//! while they run, so that neither the end of the process nor an unreachable database loses it. Does not
//! know the database.
//!
//! The file is a table of slots: numbers at fixed offsets, and the entry as JSON in its state at the start
//! of the request. A request takes a slot before it runs, counts its tokens in it, and marks it as ended.
//! Once the entry is in the database, the slot is free again. An entry that the database rejects is set
//! aside in its slot until the next start. A process that opens the file takes over the entries of one that
//! has died; those of requests that were running then are marked as interrupted. An entry that had already
//! reached the database is written again under the same id, which changes nothing. Writes reach the kernel,
//! not necessarily the disk: a crash of the machine may lose the entries that are not in the database yet.
//!
//! Disk space is reserved when the file is created, and in steps when more is needed, so that a slot can be
//! written even when the disk is full.

mod slots;

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::slots::{
    ENDED, FREE, PROMPT_AT, RUNNING, SET_ASIDE, TIME_AT, affordable, entry_in, is_free, n_slots, numbers,
    offset, read, reserve, write, write_state,
};
use crate::ledger::LedgerEntry;

/// Maximum number of slots, running requests included: 512 MiB on disk.
const MAX_SLOTS: u32 = 262_144;
/// Number of slots reserved at first: 32 MiB on disk.
const FIRST_SLOTS: u32 = 16_384;
/// Number of slots reserved at a time when all are in use.
const MORE_SLOTS: u32 = 1_024;
/// Maximum number of entries set aside. Further ones are lost, so that other entries always have slots.
const MAX_SET_ASIDE: usize = 16_384;
/// Maximum number of processes that share a folder.
const MAX_FILES: usize = 64;

/// A slot of a [`Journal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

/// The journal's file, locked as long as this value exists.
#[derive(Debug)]
pub struct Journal {
    file: File,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Number of slots with reserved space.
    n_made: u32,
    free: Vec<Slot>,
    ended: VecDeque<Slot>,
    n_set_aside: usize,
}

impl Journal {
    /// Opens the first journal `STEM-0`, `STEM-1`, … that no running process has, and adopts the entries of
    /// all processes that have died.
    ///
    /// # Errors
    /// When a file cannot be created or read, and when there are too many.
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
                // Entries are copied before their source is removed, so that a crash in between duplicates
                // entries and loses none. Entries without room now are found at the next start.
                Some(journal) => {
                    let left = left_entries(&file)?;
                    if left.iter().all(|entry| journal.end(None, entry).is_ok()) {
                        file.set_len(0)?;
                    }
                }
            }
        }
        journal.ok_or_else(|| io::Error::other(format!("{MAX_FILES} processes have a journal already")))
    }

    /// Opens the journal in this file, with the entries of a process that has died.
    fn over(file: File) -> io::Result<Self> {
        let n_there = n_slots(&file)?;
        let mut slots = Slots { n_made: n_there, ..Slots::default() };
        for slot in (0..n_there).map(Slot) {
            let bytes = read(&file, slot)?;
            match entry_in(&bytes) {
                Some(entry) => {
                    write(&file, slot, ENDED, &entry)?;
                    slots.ended.push_back(slot);
                }
                None => {
                    // Most slots are already free, so that a start need not write the whole file.
                    if !is_free(&bytes) {
                        write_state(&file, slot, FREE)?;
                    }
                    slots.free.push(slot);
                }
            }
        }
        let mut wanted = affordable(&file, FIRST_SLOTS);
        while wanted > 0 && reserve(&file, wanted).is_err() {
            wanted /= 2;
        }
        slots.free.extend((n_there..wanted).map(Slot));
        slots.n_made = n_there.max(wanted);
        // The lowest slots are taken first.
        slots.free.reverse();
        Ok(Self { file, slots: Mutex::new(slots) })
    }

    /// Takes a slot for a request that may run, and writes its names there.
    ///
    /// # Errors
    /// When all slots are in use, the disk has no room for more or the file cannot be written.
    pub fn take(&self, entry: &LedgerEntry) -> io::Result<Slot> {
        let slot = self.take_slot()?;
        write(&self.file, slot, FREE, entry).inspect_err(|_| self.slots().free.push(slot))?;
        Ok(slot)
    }

    /// Marks the request of a slot as running.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(&self, slot: Slot) -> io::Result<()> {
        write_state(&self.file, slot, RUNNING)
    }

    /// Frees the slot of a request that has not started.
    pub fn give_back(&self, slot: Slot) {
        // A failed write may have marked the slot as running.
        let _ = write_state(&self.file, slot, FREE);
        self.slots().free.push(slot);
    }

    /// Records the token counts of a running request.
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

    /// Records a request that has ended; its entry then waits for the database. Uses the names written when
    /// the slot was taken; without a slot, takes one now.
    ///
    /// # Errors
    /// When all slots are in use or the file cannot be written: the entry is lost.
    pub fn end(&self, slot: Option<Slot>, entry: &LedgerEntry) -> io::Result<()> {
        let slot = match slot {
            Some(slot) => {
                let ended = self.file.write_all_at(&numbers(ENDED, entry), offset(slot));
                ended.inspect_err(|_| self.give_back(slot))?;
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

    /// The entries of the `n` slots that have waited longest for the database. Skips and frees damaged
    /// ones.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn waiting(&self, n: usize) -> io::Result<Vec<(Slot, LedgerEntry)>> {
        let slots: Vec<Slot> = self.slots().ended.iter().take(n).copied().collect();
        let mut entries = Vec::with_capacity(slots.len());
        for slot in slots {
            match entry_in(&read(&self.file, slot)?) {
                Some(entry) => entries.push((slot, entry)),
                None => self.forget(&[slot])?,
            }
        }
        Ok(entries)
    }

    /// Number of entries that wait for the database.
    pub fn n_waiting(&self) -> usize {
        self.slots().ended.len()
    }

    /// Frees slots whose entries are now in the database.
    ///
    /// # Errors
    /// When the file cannot be written: the entries are written to the database again after a restart.
    pub fn forget(&self, written: &[Slot]) -> io::Result<()> {
        let mut freed = Ok(());
        for slot in written {
            self.slots().no_longer_waits(*slot);
            freed = write_state(&self.file, *slot, FREE).and(freed);
            self.slots().free.push(*slot);
        }
        freed
    }

    /// Sets aside an entry that the database rejects, to be retried after the next start. Returns whether
    /// there was room.
    ///
    /// # Errors
    /// When the file cannot be written: the entry is retried after a restart.
    pub fn set_aside(&self, slot: Slot) -> io::Result<bool> {
        {
            let mut slots = self.slots();
            slots.no_longer_waits(slot);
            if slots.n_set_aside < MAX_SET_ASIDE {
                slots.n_set_aside += 1;
                drop(slots);
                return write_state(&self.file, slot, SET_ASIDE).map(|()| true);
            }
        }
        self.give_back(slot);
        Ok(false)
    }

    fn take_slot(&self) -> io::Result<Slot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.free.pop() {
            return Ok(slot);
        }
        if slots.n_made >= MAX_SLOTS {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "all slots of the journal are in use"));
        }
        let (first, more) = (slots.n_made, MORE_SLOTS.min(MAX_SLOTS - slots.n_made));
        let n_more = match reserve(&self.file, first + more) {
            Ok(()) => more,
            // There may be room for a single slot.
            Err(_) => reserve(&self.file, first + 1).map(|()| 1)?,
        };
        slots.n_made = first + n_more;
        slots.free.extend((first + 1..first + n_more).rev().map(Slot));
        Ok(Slot(first))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    /// Removes a slot from the queue of entries for the database; usually it is the first one.
    fn no_longer_waits(&mut self, slot: Slot) {
        match self.ended.front() {
            Some(first) if *first == slot => drop(self.ended.pop_front()),
            _ => self.ended.retain(|known| *known != slot),
        }
    }
}

/// Opens and locks a file; `None` if another process has locked it.
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

/// The entries of a process that has died, from its file.
fn left_entries(file: &File) -> io::Result<Vec<LedgerEntry>> {
    let slots = (0..n_slots(file)?).map(Slot);
    let entries = slots.map(|slot| Ok(entry_in(&read(file, slot)?)));
    Ok(entries.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::slots::{MAX_SHORT_TEXT_BYTES, SLOT_BYTES};
    use super::*;
    use crate::ledger::Outcome;
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
        let begin = |entry: &LedgerEntry| {
            let slot = first.take(entry).expect("room");
            first.begin(slot).expect("written");
            slot
        };
        let running = begin(&entry(1));
        first.take(&entry(5)).expect("room for one that does not begin");
        first.count(running, 7, 2, 5).expect("written");
        let ended = begin(&entry(2));
        first.end(Some(ended), &LedgerEntry { generated_tokens: 9, ..entry(2) }).expect("written");
        let written = begin(&entry(3));
        first.end(Some(written), &entry(3)).expect("written");
        second.end(None, &entry(4)).expect("room");
        assert_eq!(first.waiting(10).expect("read")[0].1.generated_tokens, 9);
        // Dropped without an orderly end, as by a kill.
        drop((first, second));

        let third = Journal::open(&stem).expect("made");
        let (slots, left): (Vec<Slot>, Vec<LedgerEntry>) =
            third.waiting(10).expect("read").into_iter().unzip();
        assert_eq!(slots.len(), 4);
        let seen = |at: usize| (left[at].cached_tokens, left[at].generated_tokens, left[at].outcome);
        assert_eq!(
            left.iter().map(|entry| entry.id.as_str()).collect::<std::collections::BTreeSet<_>>().len(),
            4
        );
        assert_eq!((seen(0), seen(1)), ((2, 5, Outcome::Interrupted), (0, 9, Outcome::Stop)));
        third.forget(&slots).expect("written");
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
            let slot = journal.take(&entry(round)).expect("room");
            journal.begin(slot).expect("written");
            journal.end(Some(slot), &entry(round)).expect("written");
            assert_eq!(journal.waiting(5).expect("read"), [(slot, entry(round))]);
            journal.forget(&[slot]).expect("written");
            assert!(slot.0 < 2, "the first ones are used again");
        }
        let long = LedgerEntry { model: "\"".repeat(SLOT_BYTES), user: "\u{1}".repeat(512), ..entry(1) };
        journal.end(None, &long).expect("it is shortened");
        let (_, kept) = journal.waiting(1).expect("read").remove(0);
        assert_eq!((kept.model.len(), kept.user.len()), (MAX_SHORT_TEXT_BYTES, MAX_SHORT_TEXT_BYTES));
    }

    #[test]
    fn room_is_reserved_before_it_is_needed_and_more_is_where_it_is_not_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(&folder.path().join("journal")).expect("made");
        let n_blocks = |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("there"));
        let reserved = n_blocks(&journal.file);
        assert!(reserved * 512 >= u64::from(FIRST_SLOTS) * SLOT_BYTES as u64);
        for number in 0..FIRST_SLOTS {
            journal.take(&entry(number as usize)).expect("room");
        }
        assert_eq!(n_blocks(&journal.file), reserved);
        journal.take(&entry(1)).expect("room");
        assert!(n_blocks(&journal.file) * 512 >= u64::from(FIRST_SLOTS + MORE_SLOTS) * SLOT_BYTES as u64);
    }

    #[test]
    fn an_entry_that_is_set_aside_holds_no_other_up_and_comes_back_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let stem = folder.path().join("journal");
        let journal = Journal::open(&stem).expect("made");
        (1..=3).for_each(|number| journal.end(None, &entry(number)).expect("room"));
        let waiting = journal.waiting(10).expect("read");
        assert!(journal.set_aside(waiting[1].0).expect("written"));
        assert_eq!((journal.n_waiting(), journal.slots().n_set_aside), (2, 1));
        let ids = |journal: &Journal| {
            let waiting = journal.waiting(10).expect("read");
            waiting.into_iter().map(|(_, entry)| entry.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&journal), [entry(1).id, entry(3).id]);
        journal.forget(&[waiting[0].0, waiting[2].0]).expect("written");
        drop(journal);
        let journal = Journal::open(&stem).expect("made");
        assert_eq!((ids(&journal), journal.slots().n_set_aside), (vec![entry(2).id], 0));
        // The number of entries set aside is limited.
        journal.slots().n_set_aside = MAX_SET_ASIDE;
        let (slot, _) = journal.waiting(1).expect("read").remove(0);
        assert!(!journal.set_aside(slot).expect("written"));
        assert_eq!(journal.n_waiting(), 0);
    }
}
