//! The items of an object, read page by page.

use std::collections::VecDeque;

use throng_store::{ItemAfter, ItemQuery, ObjectKey, StoredItem};

use crate::error::StateError;
use crate::tenant::TenantState;

/// Number of chunks that are read at a time.
const N_CHUNKS: usize = 2;
/// Number of results that are read at a time.
const N_RESULTS: usize = 100;

/// Items of an object, in order.
#[derive(Debug)]
pub(crate) struct ItemReader {
    tenant: TenantState,
    query: ItemQuery,
    page: VecDeque<StoredItem>,
}

impl ItemReader {
    fn new(tenant: &TenantState, key: ObjectKey, n: usize) -> Self {
        Self { tenant: tenant.clone(), query: ItemQuery::new(key, n), page: VecDeque::new() }
    }

    /// Reads the chunks of a file.
    pub fn of_chunks(tenant: &TenantState, key: ObjectKey) -> Self {
        Self::new(tenant, key, N_CHUNKS)
    }

    /// Reads the results of a batch.
    pub fn of_results(tenant: &TenantState, key: ObjectKey) -> Self {
        Self::new(tenant, key, N_RESULTS)
    }

    /// Reads the next item.
    pub async fn next(&mut self) -> Result<Option<StoredItem>, StateError> {
        if self.page.is_empty() {
            self.page = self.tenant.store().items(&self.query).await?.into();
            if let Some(last) = self.page.back() {
                self.query.after = Some(ItemAfter::Number(last.number));
            }
        }
        Ok(self.page.pop_front())
    }
}
