//! A slice that several threads write at the same time, each a part of its own. Does not know the division
//! into parts.

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
    /// No other part still in use ([`Self::part`]) may overlap this one.
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
