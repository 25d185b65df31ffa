//! The workers that a gateway follows, in the order in which they came. Does not know who they are.

use std::sync::{Arc, PoisonError, RwLock};

use super::Link;

/// The workers that are followed.
#[derive(Debug, Default)]
pub struct Links(RwLock<Arc<[Arc<Link>]>>);

impl Links {
    /// The present connections.
    pub fn now(&self) -> Arc<[Arc<Link>]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds one.
    pub fn add(&self, link: Arc<Link>) {
        let mut links = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *links = links.iter().cloned().chain([link]).collect();
    }

    /// Takes one away.
    pub fn remove(&self, link: &Arc<Link>) {
        let mut links = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *links = links.iter().filter(|other| !Arc::ptr_eq(other, link)).cloned().collect();
    }
}
