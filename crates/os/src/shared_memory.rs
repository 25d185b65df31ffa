//! Memory that processes of one host share, as atomic integers only: even if another process writes at any
//! time, a read returns some number. Waiting for a change of one of the integers, across processes. Does not
//! know the meaning of the numbers.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

/// Numbers of integers in a shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSizes {
    /// Integers of 32 bits, on which threads can wait.
    pub n_flags: usize,
    /// Number of integers of 64 bits, after them.
    pub n_words: usize,
}

impl SharedSizes {
    /// Bytes of the flags, up to the first word.
    fn flag_bytes(self) -> Option<usize> {
        self.n_flags.checked_mul(size_of::<AtomicU32>())?.checked_next_multiple_of(PAGE_BYTES)
    }

    fn bytes(self) -> Option<usize> {
        self.flag_bytes()?.checked_add(self.n_words.checked_mul(size_of::<AtomicU64>())?)
    }
}

/// Words begin at a multiple of this number of bytes, a multiple of the alignment of each integer.
const PAGE_BYTES: usize = 4096;

/// A mapped anonymous file (memfd) of integers, all 0 at first. Pages take memory once they are written.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    file: File,
    sizes: SharedSizes,
}

impl SharedMemory {
    /// Creates a memory that no other process has.
    ///
    /// # Errors
    /// When the system refuses, or has no such memory.
    pub fn create(sizes: SharedSizes) -> io::Result<Self> {
        let n_bytes = sizes.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        Self::map(anonymous_file(n_bytes)?, sizes)
    }

    /// Maps the memory of another process, given a handle of its [file](Self::file).
    ///
    /// # Errors
    /// When the file is not such a memory, or one of other sizes.
    pub fn open(file: File, sizes: SharedSizes) -> io::Result<Self> {
        if !is_sealed(&file)? || Some(file.metadata()?.len()) != sizes.bytes().map(|bytes| bytes as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no shared memory of these sizes"));
        }
        Self::map(file, sizes)
    }

    fn map(file: File, sizes: SharedSizes) -> io::Result<Self> {
        let n_bytes = sizes.bytes().ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(n_bytes).map_raw(&file)?;
        Ok(Self { map, file, sizes })
    }

    /// The file, which other processes map.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The integers of 32 bits.
    pub fn flags(&self) -> &[AtomicU32] {
        // SAFETY: the mapping is as long as the sizes say, lives as long as the slice, and begins at a page;
        // the file is sealed against being shortened. All processes touch these bytes by atomic operations
        // of 32 bits only, and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU32>(), self.sizes.n_flags) }
    }

    /// The integers of 64 bits.
    pub fn words(&self) -> &[AtomicU64] {
        let first = self.sizes.flag_bytes().expect("the sizes were checked");
        // SAFETY: as for the flags, by operations of 64 bits; the words begin at a page behind the flags.
        unsafe {
            let words = self.map.as_ptr().add(first).cast::<AtomicU64>();
            std::slice::from_raw_parts(words, self.sizes.n_words)
        }
    }
}

/// An anonymous file of zeros that cannot be made shorter or longer.
#[cfg(target_os = "linux")]
fn anonymous_file(n_bytes: usize) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = File::from(memfd_create("throng", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(n_bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn is_sealed(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_get_seals(file)?.contains(rustix::fs::SealFlags::SHRINK))
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file(_n_bytes: usize) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn is_sealed(_file: &File) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Waits until the flag may have another value than `seen`, at most for this duration (futex(2)). It may
/// return early.
#[cfg(target_os = "linux")]
pub fn wait_for_change(flag: &AtomicU32, seen: u32, at_most: Duration) {
    use rustix::thread::futex::{Flags, wait};
    let at_most = at_most.min(Duration::from_secs(3600));
    let timeout = rustix::thread::futex::Timespec {
        tv_sec: at_most.as_secs() as _,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // Whatever the call says, the caller reads the flag again.
    let _ = wait(flag, Flags::empty(), seen, Some(&timeout));
}

/// Wakes all threads of all processes that wait for a change of the flag.
#[cfg(target_os = "linux")]
pub fn wake_all(flag: &AtomicU32) {
    use rustix::thread::futex::{Flags, wake};
    let _ = wake(flag, Flags::empty(), i32::MAX as u32);
}

/// Waits a little, at most for this duration.
#[cfg(not(target_os = "linux"))]
pub fn wait_for_change(_flag: &AtomicU32, _seen: u32, at_most: Duration) {
    std::thread::sleep(at_most.min(Duration::from_micros(50)));
}

/// Does nothing: waiting threads check the flag again by themselves.
#[cfg(not(target_os = "linux"))]
pub fn wake_all(_flag: &AtomicU32) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_have_the_same_integers() {
        let sizes = SharedSizes { n_flags: 3, n_words: 5 };
        let one = SharedMemory::create(sizes).expect("there is memory");
        let other = SharedMemory::open(one.file().try_clone().expect("a handle"), sizes).expect("the same");
        one.flags()[2].store(7, Ordering::Relaxed);
        one.words()[4].store(u64::MAX, Ordering::Relaxed);
        assert_eq!((other.flags().len(), other.words().len()), (3, 5));
        assert_eq!(other.flags()[2].load(Ordering::Relaxed), 7);
        assert_eq!(other.words()[4].load(Ordering::Relaxed), u64::MAX);
        assert!(one.file().set_len(1).is_err(), "it cannot be shortened under a reader");
    }

    #[test]
    fn other_files_and_sizes_are_refused() {
        let sizes = SharedSizes { n_flags: 1, n_words: 1 };
        let memory = SharedMemory::create(sizes).expect("there is memory");
        let larger = SharedSizes { n_words: 2, ..sizes };
        assert!(SharedMemory::open(memory.file().try_clone().expect("a handle"), larger).is_err());
        assert!(SharedMemory::open(File::open("/proc/self/exe").expect("it is there"), sizes).is_err());
        assert!(SharedMemory::create(SharedSizes { n_flags: 1, n_words: usize::MAX }).is_err());
    }

    #[test]
    fn a_thread_waits_until_it_is_woken() {
        let memory = SharedMemory::create(SharedSizes { n_flags: 1, n_words: 0 }).expect("there is memory");
        let flag = &memory.flags()[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while flag.load(Ordering::Acquire) == 0 {
                    wait_for_change(flag, 0, Duration::from_secs(60));
                }
            });
            flag.store(1, Ordering::Release);
            wake_all(flag);
        });
        // A value that is another one already is not waited for.
        wait_for_change(flag, 0, Duration::from_secs(60));
    }
}
