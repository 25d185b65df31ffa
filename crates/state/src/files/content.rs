//! The content of a file, read piece by piece.

use throng_store::{ObjectKind, StoredObject};

use super::record::FileRecord;
use crate::error::StateError;
use crate::items::ItemReader;
use crate::results::{ResultsOf, openai_line};
use crate::tenant::TenantState;

/// The content of a file.
#[derive(Debug)]
pub struct Content {
    items: ItemReader,
    results: Option<ResultsOf>,
}

impl Content {
    pub(super) fn of(tenant: &TenantState, object: &StoredObject, record: &FileRecord) -> Self {
        let items = match &record.results {
            None => ItemReader::of_chunks(tenant, object.key.clone()),
            Some(results) => ItemReader::of_results(tenant, tenant.key(ObjectKind::Batch, &results.batch)),
        };
        Self { items, results: record.results.clone() }
    }

    /// Reads the next piece; `None` at the end.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StateError> {
        while let Some(item) = self.items.next().await? {
            match &self.results {
                None => return Ok(Some(item.body)),
                Some(results) => {
                    if let Some(line) = openai_line(results, &item) {
                        return Ok(Some(line));
                    }
                }
            }
        }
        Ok(None)
    }
}
