//! The items of a conversation before a turn. Turns share them: a turn adds its own and copies none.

use std::sync::Arc;

use super::super::item::Item;

/// Items of earlier turns, in order.
#[derive(Debug, Clone, Default)]
pub struct History(Vec<Arc<[Item]>>);

impl History {
    /// Adds the items of a turn.
    pub fn push(&mut self, items: impl Into<Arc<[Item]>>) {
        self.0.push(items.into());
    }

    /// The items, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Item> + Clone {
        self.0.iter().flat_map(|turn| turn.iter())
    }
}

impl From<Vec<Item>> for History {
    fn from(items: Vec<Item>) -> Self {
        Self(vec![items.into()])
    }
}
