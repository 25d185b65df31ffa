//! Names of a model's adapters, and the choice of the adapter that makes room for another. Does not load
//! and unload.

use std::collections::BTreeMap;

/// The names of a model's adapters, in memory or not.
#[derive(Debug)]
pub struct AdapterNames {
    /// For each name, the value of `clock` at its last use.
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

    /// Checks that an adapter may get this name, which another one may have if `in_place`.
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

    /// The adapter that is removed to make room for another: the least recently used one of those that
    /// `may_go`.
    pub fn oldest(&self, may_go: impl Fn(&str) -> bool) -> Option<&str> {
        let may_go = self.last_used.iter().filter(|(name, _)| may_go(name));
        may_go.min_by_key(|(_, last_used)| **last_used).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_unused_for_longest_goes() {
        let mut names = AdapterNames::new(3);
        names.add_first("never");
        for name in ["a", "b", "a"] {
            names.use_now(name);
        }
        assert_eq!(names.oldest(|_| true), Some("never"));
        assert_eq!(names.oldest(|name| name != "never"), Some("b"));
        assert_eq!(names.oldest(|_| false), None);
        names.remove("never");
        assert_eq!(names.oldest(|_| true), Some("b"));
    }

    #[test]
    fn names_are_unique_and_bounded() {
        let mut names = AdapterNames::new(2);
        names.use_now("a");
        assert_eq!((names.check("a", false), names.check("a", true)), (Err(NameRefusal::Taken), Ok(())));
        names.use_now("b");
        assert_eq!((names.check("c", false), names.check("b", true)), (Err(NameRefusal::TooMany(2)), Ok(())));
        names.remove("a");
        assert_eq!(names.check("c", false), Ok(()));
    }
}
