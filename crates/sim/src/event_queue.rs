//! The queue of future events, in order of time; among events of the same time the one that was added first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use throng_core::time::Timestamp;

/// Queue of future events.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    n_added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Timestamp,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), n_added: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event.
    pub fn push(&mut self, at: Timestamp, event: E) {
        self.heap.push(Reverse(Entry { at, number: self.n_added, event }));
        self.n_added += 1;
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Timestamp, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_addition() {
        let mut queue = EventQueue::default();
        for (at, name) in [(2, "c"), (1, "a"), (1, "b")] {
            queue.push(Timestamp::from_ns(at), name);
        }
        let order: Vec<&str> = std::iter::from_fn(|| queue.pop().map(|(_, name)| name)).collect();
        assert_eq!(order, ["a", "b", "c"]);
    }
}
