//! The results of Anthropic's batches.

use throng_store::ObjectKind;

use super::record::Status;
use super::{BatchForm, manage};
use crate::error::StateError;
use crate::items::ItemReader;
use crate::results::{ResultLine, message_result};
use crate::tenant::TenantState;

/// The results of one of Anthropic's batches, line by line.
#[derive(Debug)]
pub struct MessageResults(ItemReader);

impl MessageResults {
    /// Opens the results of a batch that has ended.
    ///
    /// # Errors
    /// [`StateError::NotFound`], also while it has not ended.
    pub async fn open(tenant: &TenantState, id: &str) -> Result<Self, StateError> {
        let batch = manage::get(tenant, BatchForm::Anthropic, id).await?;
        if !batch.status.is_final() || batch.status == Status::Failed {
            return Err(StateError::NotFound { what: "results of an ended batch", id: id.to_owned() });
        }
        Ok(Self(ItemReader::of_results(tenant, tenant.key(ObjectKind::MessageBatch, id))))
    }

    /// Reads the next line; `None` at the end.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StateError> {
        while let Some(item) = self.0.next().await? {
            if let Some((line, body)) = ResultLine::read(&item) {
                return Ok(Some(message_result(&line, body)));
            }
        }
        Ok(None)
    }
}
