//! The workers that a gateway follows, in order of arrival. Does not know their state.

use std::sync::{Arc, PoisonError, RwLock};

use super::Link;

/// Workers that are followed.
#[derive(Debug, Default)]
pub struct Links(RwLock<Arc<[Arc<Link>]>>);

impl Links {
    /// The current workers.
    pub fn now(&self) -> Arc<[Arc<Link>]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a worker.
    pub fn add(&self, link: Arc<Link>) {
        let mut links = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *links = links.iter().cloned().chain([link]).collect();
    }

    /// Removes a worker.
    pub fn remove(&self, link: &Arc<Link>) {
        let mut links = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *links = links.iter().filter(|other| !Arc::ptr_eq(other, link)).cloned().collect();
    }
}
