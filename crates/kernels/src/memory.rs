//! Large byte buffers on cache lines, on huge pages where the system gives them. Refuses to know what they hold.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Buffers from this size on are aligned to huge pages and ask for them.
const HUGE_PAGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Zeroed bytes, aligned to a cache line. Large ones take no memory before they are first touched.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// The pages that large buffers lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge ones where the system gives them: for what is written at once and read as a whole.
    Huge,
    /// Small ones: for what is written here and there over a long time. The first touch of a huge page clears all of
    /// it, and one page of each layer at once held a step up by a tenth of a second.
    Small,
}

/// How to give the memory back.
#[derive(Debug)]
enum Origin {
    Heap(Layout),
    #[cfg(target_os = "linux")]
    Mapping {
        address: *mut libc::c_void,
        len: usize,
    },
}

// SAFETY: it owns plain bytes.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` when there is no room for them.
    pub(crate) fn zeroed(n_bytes: usize, pages: Pages) -> Option<Self> {
        let len = n_bytes.max(1).checked_next_multiple_of(CACHE_LINE)?;
        #[cfg(target_os = "linux")]
        if len >= 2 * HUGE_PAGE {
            return Self::mapped(len, pages);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        let layout = Layout::from_size_align(len, CACHE_LINE).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len, origin: Origin::Heap(layout) })
    }

    #[cfg(target_os = "linux")]
    fn mapped(len: usize, pages: Pages) -> Option<Self> {
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
                Pages::Huge => libc::MADV_HUGEPAGE,
                Pages::Small => libc::MADV_NOHUGEPAGE,
            };
            libc::madvise(start.cast(), len, advice);
            let start = NonNull::new(start)?;
            Some(Self { start, len, origin: Origin::Mapping { address, len: mapped } })
        }
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
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: each is given back as it was taken.
        unsafe {
            match self.origin {
                Origin::Heap(layout) => dealloc(self.start.as_ptr(), layout),
                #[cfg(target_os = "linux")]
                Origin::Mapping { address, len } => {
                    libc::munmap(address, len);
                }
            }
        }
    }
}

/// A slice whose disjoint parts several threads write at once.
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

    /// A pointer to element `at`, good for what no part still in use overlaps.
    ///
    /// # Panics
    /// When there is no such element.
    pub(crate) fn pointer(&self, at: usize) -> *mut T {
        assert!(at < self.len, "{at} of {}", self.len);
        self.start.wrapping_add(at)
    }

    /// Elements `at..at + len`.
    ///
    /// # Safety
    /// No other part handed out and still in use may overlap this one.
    ///
    /// # Panics
    /// When the range is out of bounds.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} + {len} of {}", self.len);
        // SAFETY: in bounds of the borrowed slice; not aliased by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
