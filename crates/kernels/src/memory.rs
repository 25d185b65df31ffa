//! Large byte buffers aligned to cache lines, on huge pages where the system provides them. Does not know what they hold.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
#[cfg(target_os = "linux")]
use std::sync::{Arc, Mutex, Weak};

/// Buffers of at least this size are aligned to huge pages and request them.
const HUGE_PAGE: usize = 2 << 20;
/// The smallest page size in use; on systems with larger pages some pages are touched several times.
pub(crate) const SMALL_PAGE: usize = 4096;
const CACHE_LINE: usize = 64;
/// Bytes of a region shared by buffers; untouched pages take no memory.
#[cfg(target_os = "linux")]
const REGION: usize = 64 << 20;
/// Buffers larger than this get a mapping of their own: they waste little of their last page.
#[cfg(target_os = "linux")]
const LARGEST_SHARED: usize = 16 << 20;

/// Zeroed bytes, aligned to a cache line. Large ones take no memory before they are first touched.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// The kind of pages for a large buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages where available: for data that is written once and read as a whole.
    Huge,
    /// Huge pages shared with other such buffers: for buffers smaller than a few huge pages that live equally long, since a region is freed
    /// only as a whole.
    Shared,
    /// Small pages: for data written piecemeal over a long time. The first touch of a huge page zeroes all of it, and doing so for one page of
    /// every layer at once delayed a step by a tenth of a second.
    Small,
}

/// How the memory is freed.
#[derive(Debug)]
enum Origin {
    Heap(Layout),
    /// A shared mapping, freed with its last buffer.
    #[cfg(target_os = "linux")]
    Mapping {
        _held: Arc<Mapping>,
    },
}

// SAFETY: it owns plain bytes.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` when memory cannot be allocated.
    pub(crate) fn zeroed(n_bytes: usize, pages: Pages) -> Option<Self> {
        let len = n_bytes.max(1).checked_next_multiple_of(CACHE_LINE)?;
        #[cfg(target_os = "linux")]
        if pages == Pages::Shared && len <= LARGEST_SHARED {
            return Self::shared(len);
        }
        #[cfg(target_os = "linux")]
        if len >= 2 * HUGE_PAGE {
            let mapping = Arc::new(Mapping::new(len, pages)?);
            return Some(Self { start: mapping.start, len, origin: Origin::Mapping { _held: mapping } });
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        let layout = Layout::from_size_align(len, CACHE_LINE).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len, origin: Origin::Heap(layout) })
    }

    /// A reusable buffer of at least `n_bytes`; zeroed when it is reallocated.
    ///
    /// # Panics
    /// When memory cannot be allocated.
    pub(crate) fn at_least(kept: &mut Option<Self>, n_bytes: usize) -> &mut [u8] {
        if kept.as_ref().is_none_or(|bytes| bytes.as_slice().len() < n_bytes) {
            *kept = Self::zeroed(n_bytes, Pages::Huge);
        }
        let bytes =
            kept.as_mut().unwrap_or_else(|| panic!("no memory for {n_bytes} bytes of intermediate values"));
        bytes.as_mut_slice()
    }

    /// The next bytes of the current region, or the first of a new one.
    #[cfg(target_os = "linux")]
    fn shared(len: usize) -> Option<Self> {
        /// The current region and how much of it is in use.
        static IN_USE: Mutex<(Weak<Mapping>, usize)> = Mutex::new((Weak::new(), 0));
        let mut in_use = IN_USE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (region, taken) = match in_use.0.upgrade().filter(|_| in_use.1 + len <= REGION) {
            Some(region) => (region, in_use.1),
            None => (Arc::new(Mapping::new(REGION, Pages::Huge)?), 0),
        };
        *in_use = (Arc::downgrade(&region), taken + len);
        // SAFETY: within the mapping.
        let start = unsafe { region.start.add(taken) };
        Some(Self { start, len, origin: Origin::Mapping { _held: region } })
    }

    /// The bytes, rounded up to whole cache lines.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: initialized, owned, that long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// As [`Self::as_slice`].
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: initialized, owned, that long, borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Bytes `at..at + len`, for one of several threads that write them.
    ///
    /// # Safety
    /// No other part still in use may overlap this one, and the caller that lets the threads write must own the buffer exclusively.
    ///
    /// # Panics
    /// When the range is out of bounds.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} + {len} of {}", self.len);
        // SAFETY: in bounds of owned bytes; not aliased by the caller's guarantee.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: freed with the layout it was allocated with.
            Origin::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Origin::Mapping { .. } => {}
        }
    }
}

/// Zeroed pages from the system, aligned to huge pages.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    address: *mut libc::c_void,
    mapped: usize,
}

#[cfg(target_os = "linux")]
impl Mapping {
    fn new(len: usize, pages: Pages) -> Option<Self> {
        let mapped = len.checked_add(HUGE_PAGE)?;
        // SAFETY: a new private mapping of zeros, checked below; advice on it may be refused without harm.
        unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let address = libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0);
            if address == libc::MAP_FAILED {
                return None;
            }
            let skip = address.cast::<u8>().align_offset(HUGE_PAGE);
            let start = address.cast::<u8>().add(skip);
            let advice = match pages {
                Pages::Huge | Pages::Shared => libc::MADV_HUGEPAGE,
                Pages::Small => libc::MADV_NOHUGEPAGE,
            };
            libc::madvise(start.cast(), len, advice);
            Some(Self { start: NonNull::new(start)?, address, mapped })
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmapped with the address and size it was mapped with.
        unsafe { libc::munmap(self.address, self.mapped) };
    }
}

// SAFETY: only bytes that one buffer owns alone are read and written through it.
#[cfg(target_os = "linux")]
unsafe impl Send for Mapping {}
// SAFETY: bytes that several threads read are not written meanwhile, by the buffer that owns them.
#[cfg(target_os = "linux")]
unsafe impl Sync for Mapping {}

/// A slice whose disjoint parts are written by several threads concurrently.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    _borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `part`, whose caller vouches that they do not overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: it stands for a unique borrow.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: std::marker::PhantomData }
    }

    /// A pointer to element `at`; may be used where no other part in use overlaps.
    ///
    /// # Panics
    /// When the element does not exist.
    pub(crate) fn pointer(&self, at: usize) -> *mut T {
        assert!(at < self.len, "{at} of {}", self.len);
        self.start.wrapping_add(at)
    }

    /// Elements `at..at + len`, to be read.
    ///
    /// # Safety
    /// No part of [`Self::part`] still in use may overlap this one.
    ///
    /// # Panics
    /// When the range is out of bounds.
    pub(crate) unsafe fn shared(&self, at: usize, len: usize) -> &'a [T] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} + {len} of {}", self.len);
        // SAFETY: in bounds of the borrowed slice; only read by the caller's guarantee.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// Elements `at..at + len`.
    ///
    /// # Safety
    /// No other part still in use may overlap this one.
    ///
    /// # Panics
    /// When the range is out of bounds.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} + {len} of {}", self.len);
        // SAFETY: in bounds of the borrowed slice; not aliased by the caller's guarantee.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
