//! The limit on memory held for requests: bodies, prompts, answers, sockets. Every part of the server
//! reserves bytes here before it holds them for a request. Reservations that do not fit are refused at once
//! and never wait. Allocates nothing itself, and does not know HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum bytes of a small reservation. Small ones may use the whole limit, larger ones three quarters of
/// it, so that many large requests leave room for ordinary ones.
const SMALL_BYTES: usize = 256 << 10;

/// Purpose of held bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Request bodies, and memory for parsing, rendering and tokenizing them.
    Bodies,
    /// Tokens of prompts and generation parameters, from admission to the end of the request.
    Prompts,
    /// Answers until they are passed on for sending.
    Answers,
    /// Connections with their fixed buffers, and bytes passed on for sending until they are written.
    Sockets,
}

impl Part {
    /// All purposes of held bytes.
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

/// Bytes held for all requests, with their limit.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    total: AtomicUsize,
    parts: [AtomicUsize; Part::ALL.len()],
}

/// Reason why bytes cannot be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFull {
    /// Other requests hold too much memory at present.
    Now,
    /// The reservation exceeds the limit even on an idle server.
    Never {
        /// Maximum bytes of a reservation.
        limit: usize,
    },
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, total: AtomicUsize::new(0), parts: Default::default() })
    }

    /// Limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Number of bytes held for `part`.
    pub fn held(&self, part: Part) -> usize {
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// Whether more than half of the limit is held.
    pub fn is_pressed(&self) -> bool {
        self.total.load(Ordering::Relaxed) > self.limit / 2
    }

    /// Creates an empty reservation, which can grow.
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

/// Bytes held for one request; released on drop.
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

    /// Changes the reservation to `n_bytes`.
    ///
    /// # Errors
    /// When they do not fit; the reservation is then unchanged.
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

    /// Grows the reservation to at least `n_bytes`, with some reserve if there is room, so that it need not
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

    /// Adds bytes even beyond the limit: for bytes with a limit of their own, and for work that may no longer
    /// be refused.
    pub fn add_always(&mut self, more: usize) {
        self.budget.add(self.part, more, usize::MAX);
        self.n_bytes += more;
    }

    /// Releases bytes.
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
