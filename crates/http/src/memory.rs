//! The bound on what requests hold in memory: bodies, prompts, answers, sockets. A part of the server that is
//! about to hold bytes for a request reserves them here first; what does not fit is refused at once, and
//! nothing waits for room. Does not allocate anything itself and does not know HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reservations up to this size may use the whole bound, larger ones three quarters of it: so a crowd of
/// large requests leaves room for ordinary ones.
const SMALL_BYTES: usize = 256 << 10;

/// Purpose for which bytes are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Request bodies, and what parsing, rendering and tokenizing them needs meanwhile.
    Bodies,
    /// Prompts as tokens and how they are to be continued, from admission to the end of the request.
    Prompts,
    /// Answers until they are given to be sent.
    Answers,
    /// Connections with their fixed buffers, and what was given to be sent until it is written.
    Sockets,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Bodies, Self::Prompts, Self::Answers, Self::Sockets];

    /// The value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bodies => "bodies",
            Self::Prompts => "prompts",
            Self::Answers => "answers",
            Self::Sockets => "sockets",
        }
    }
}

/// The bytes held for all requests, against a bound.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    total: AtomicUsize,
    parts: [AtomicUsize; Part::ALL.len()],
}

/// Reason why bytes cannot be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFull {
    /// Others hold too much at present.
    Now,
    /// Not even an idle server would hold them.
    Never {
        /// Most bytes one reservation may have.
        limit: usize,
    },
}

impl MemoryBudget {
    /// A bound of `limit` bytes of which none are held.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, total: AtomicUsize::new(0), parts: Default::default() })
    }

    /// The bound in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes held for `part`.
    pub fn held(&self, part: Part) -> usize {
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// Whether more than half of the bound is held.
    pub fn is_pressed(&self) -> bool {
        self.total.load(Ordering::Relaxed) > self.limit / 2
    }

    /// A reservation of no bytes, to be grown.
    pub fn reservation(self: &Arc<Self>, part: Part) -> Reservation {
        Reservation { budget: self.clone(), part, n_bytes: 0 }
    }

    /// Reserves `n_bytes`.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn reserve(self: &Arc<Self>, part: Part, n_bytes: usize) -> Result<Reservation, MemoryFull> {
        let mut reservation = self.reservation(part);
        reservation.set(n_bytes)?;
        Ok(reservation)
    }

    fn add(&self, part: Part, more: usize, limit: usize) -> bool {
        let fits = |total: usize| total.checked_add(more).filter(|&sum| sum <= limit);
        let added = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if added {
            self.parts[part as usize].fetch_add(more, Ordering::Relaxed);
        }
        added
    }

    fn give_back(&self, part: Part, n_bytes: usize) {
        self.total.fetch_sub(n_bytes, Ordering::Relaxed);
        self.parts[part as usize].fetch_sub(n_bytes, Ordering::Relaxed);
    }
}

/// Bytes that are held for one request; given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    part: Part,
    n_bytes: usize,
}

impl Reservation {
    /// Number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Makes it `n_bytes`, more or fewer than before.
    ///
    /// # Errors
    /// When they do not fit; it is then as before.
    pub fn set(&mut self, n_bytes: usize) -> Result<(), MemoryFull> {
        if n_bytes > self.n_bytes {
            let all = self.budget.limit;
            let limit = if n_bytes <= SMALL_BYTES { all } else { all - all / 4 };
            if n_bytes > limit {
                return Err(MemoryFull::Never { limit });
            }
            if !self.budget.add(self.part, n_bytes - self.n_bytes, limit) {
                return Err(MemoryFull::Now);
            }
        } else {
            self.budget.give_back(self.part, self.n_bytes - n_bytes);
        }
        self.n_bytes = n_bytes;
        Ok(())
    }

    /// Makes it at least `n_bytes`, and where it has to grow and there is room some more, so that it need not
    /// grow for every byte.
    ///
    /// # Errors
    /// Errors of [`Self::set`].
    pub fn cover(&mut self, n_bytes: usize) -> Result<(), MemoryFull> {
        if n_bytes <= self.n_bytes || self.set(n_bytes + n_bytes / 8 + 1024).is_ok() {
            return Ok(());
        }
        self.set(n_bytes)
    }

    /// Adds bytes past the bound if need be: for what another limit bounds and what must not be refused any
    /// more.
    pub fn add_always(&mut self, more: usize) {
        self.budget.add(self.part, more, usize::MAX);
        self.n_bytes += more;
    }

    /// Gives bytes back.
    pub fn give_back(&mut self, n_bytes: usize) {
        let n_bytes = n_bytes.min(self.n_bytes);
        self.budget.give_back(self.part, n_bytes);
        self.n_bytes -= n_bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.part, self.n_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_dropped_is_free_again() {
        let budget = MemoryBudget::new(8 << 20);
        let mut first = budget.reserve(Part::Bodies, 4 << 20).expect("room");
        assert_eq!(budget.reserve(Part::Prompts, 3 << 20).map(drop), Err(MemoryFull::Now));
        assert_eq!(first.set(7 << 20), Err(MemoryFull::Never { limit: 6 << 20 }));
        assert_eq!((first.n_bytes(), budget.held(Part::Bodies)), (4 << 20, 4 << 20));
        first.set(1 << 20).expect("less always fits");
        let second = budget.reserve(Part::Prompts, 3 << 20).expect("room");
        assert_eq!(budget.held(Part::Prompts), 3 << 20);
        drop((first, second));
        assert!(Part::ALL.iter().all(|&part| budget.held(part) == 0));
    }

    #[test]
    fn large_ones_leave_room_for_small_ones() {
        let budget = MemoryBudget::new(8 << 20);
        let large: Vec<_> = std::iter::from_fn(|| budget.reserve(Part::Bodies, 1 << 20).ok()).collect();
        assert_eq!(large.len(), 6);
        let small: Vec<_> = std::iter::from_fn(|| budget.reserve(Part::Bodies, SMALL_BYTES).ok()).collect();
        assert_eq!(small.len(), 8);
        assert_eq!(budget.reserve(Part::Bodies, 1).map(drop), Err(MemoryFull::Now));
        let mut socket = budget.reservation(Part::Sockets);
        socket.add_always(100);
        assert_eq!(budget.held(Part::Sockets), 100);
    }
}
