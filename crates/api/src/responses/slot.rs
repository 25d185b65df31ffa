//! Slot in which the writer of a response leaves it for the store. Does not know stores.

use std::sync::{Arc, Mutex, PoisonError};

use throng_text::TrailPart;

use super::item::Item;

/// A response in its latest state.
#[derive(Debug, Clone)]
pub struct WholeResponse {
    /// The response object as JSON.
    pub json: Vec<u8>,
    /// Whether it has ended.
    pub has_ended: bool,
    /// Whether it has failed.
    pub has_failed: bool,
    /// Output items of the response.
    pub output: Vec<Item>,
    /// Its tokens, as the turn's part of its conversation's.
    pub trail: Option<TrailPart>,
}

/// Slot in which a writer leaves a response for its readers: when it begins, and once it has ended.
#[derive(Debug, Clone, Default)]
pub struct ResponseSlot(Arc<Mutex<Option<WholeResponse>>>);

impl ResponseSlot {
    /// Takes out the response that was stored last.
    pub fn take(&self) -> Option<WholeResponse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes out the response if it has ended.
    pub fn take_finished(&self) -> Option<WholeResponse> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.take_if(|response| response.has_ended)
    }

    pub(super) fn put(&self, response: WholeResponse) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    }
}
