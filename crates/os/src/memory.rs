//! Large byte buffers aligned to cache lines, on huge pages where the system provides them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
#[cfg(target_os = "linux")]
use std::sync::{Arc, Mutex, Weak};

#[cfg(target_os = "linux")]
use memmap2::{Advice, MmapMut, MmapOptions};

/// Buffers of at least this size are aligned to huge pages and request them.
const HUGE_PAGE: usize = 2 << 20;
/// The smallest page size in use; on systems with larger pages some pages are touched several times.
pub const SMALL_PAGE: usize = 4096;
const CACHE_LINE: usize = 64;
/// Bytes of a region shared by buffers; untouched pages take no memory.
#[cfg(target_os = "linux")]
const REGION: usize = 64 << 20;
/// Buffers larger than this get a mapping of their own: they waste little of their last page.
#[cfg(target_os = "linux")]
const LARGEST_SHARED: usize = 16 << 20;

/// Zeroed bytes, aligned to a cache line. Large ones take no memory before they are first touched.
#[derive(Debug)]
pub struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// The kind of pages for a large buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages where available: for data that is written once and read as a whole.
    Huge,
    /// Huge pages shared with other such buffers: for buffers smaller than a few huge pages with equal
    /// lifetimes, since a region is freed only as a whole.
    Shared,
    /// Small pages: for data written piecemeal over a long time. The first touch of a huge page zeroes the
    /// whole page, and doing so for one page of every layer at once delayed a step by a tenth of a second.
    Small,
}

/// Origin of the memory, which determines how it is freed.
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
    /// Allocates at least `n_bytes`; `None` when memory cannot be allocated.
    pub fn zeroed(n_bytes: usize, pages: Pages) -> Option<Self> {
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
    pub fn at_least(kept: &mut Option<Self>, n_bytes: usize) -> &mut [u8] {
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
        /// The current region and the number of bytes in use.
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
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: initialized, owned, that long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, rounded up to whole cache lines, to be written.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: initialized, owned, that long, borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Bytes `at..at + len`, for one of several threads that write them.
    ///
    /// # Safety
    /// No other part still in use may overlap this one, and the caller that lets the threads write must own
    /// the buffer exclusively.
    ///
    /// # Panics
    /// When the range is out of bounds.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub unsafe fn part(&self, at: usize, len: usize) -> &mut [u8] {
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
    /// The first huge page's address in the map.
    start: NonNull<u8>,
    /// Owns the pages; they are accessed through `start` only.
    _map: MmapMut,
}

#[cfg(target_os = "linux")]
impl Mapping {
    fn new(len: usize, pages: Pages) -> Option<Self> {
        let mut map = MmapOptions::new().len(len.checked_add(HUGE_PAGE)?).map_anon().ok()?;
        let first = map.as_mut_ptr().align_offset(HUGE_PAGE);
        let advice = match pages {
            Pages::Huge | Pages::Shared => Advice::HugePage,
            Pages::Small => Advice::NoHugePage,
        };
        // A refusal does no harm.
        let _ = map.advise_range(advice, first, len);
        let start = NonNull::new(map.as_mut_ptr().wrapping_add(first))?;
        Some(Self { start, _map: map })
    }
}

// SAFETY: only bytes that one buffer owns alone are read and written through it.
#[cfg(target_os = "linux")]
unsafe impl Send for Mapping {}
// SAFETY: bytes that several threads read are not written meanwhile, by the buffer that owns them.
#[cfg(target_os = "linux")]
unsafe impl Sync for Mapping {}
