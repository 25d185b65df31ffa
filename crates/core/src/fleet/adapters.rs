//! Names of a model's adapters, and the choice of the adapter that makes room for another. Does not load
//! and unload.

use std::collections::BTreeMap;

/// The names of a model's adapters, in memory or not.
#[derive(Debug)]
pub struct AdapterNames {
    /// Value of `clock` at the last use of each name.
    last_used: BTreeMap<String, u64>,
    max_names: usize,
    /// Increases by one with each use.
    clock: u64,
}

/// Reasons for which an adapter cannot get a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRefusal {
    /// Another adapter has the name.
    Taken,
    /// The model has the maximum number of adapters, which is this.
    TooMany(usize),
}

impl AdapterNames {
    /// Creates the set without names, for at most `max_names`.
    pub fn new(max_names: usize) -> Self {
        Self { last_used: BTreeMap::new(), max_names, clock: 0 }
    }

    /// Gives an adapter a name that was chosen before the model was served, beyond `max_names` too.
    pub fn add_first(&mut self, name: &str) {
        self.last_used.insert(name.to_owned(), 0);
    }

    /// Checks that an adapter may get this name, which may be in use if `in_place`.
    ///
    /// # Errors
    /// When the name is taken, or there are too many.
    pub fn check(&self, name: &str, in_place: bool) -> Result<(), NameRefusal> {
        match self.last_used.contains_key(name) {
            true if !in_place => Err(NameRefusal::Taken),
            false if self.last_used.len() >= self.max_names => Err(NameRefusal::TooMany(self.max_names)),
            _ => Ok(()),
        }
    }

    /// Notes a use of this name.
    pub fn use_now(&mut self, name: &str) {
        self.clock += 1;
        match self.last_used.get_mut(name) {
            Some(last_used) => *last_used = self.clock,
            None => drop(self.last_used.insert(name.to_owned(), self.clock)),
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &str) {
        self.last_used.remove(name);
    }

    /// The adapter to evict in favour of another: the least recently used one of those that `may_go`.
    pub fn oldest(&self, may_go: impl Fn(&str) -> bool) -> Option<&str> {
        let may_go = self.last_used.iter().filter(|(name, _)| may_go(name));
        may_go.min_by_key(|(_, last_used)| **last_used).map(|(name, _)| name.as_str())
    }
}
