//! Gives the keys of the database to the gateway, at the start and whenever they change.

use anyhow::{Context, Result};
use throng_gateway::Loading;

/// Opens the database, reads its keys and follows it while the server runs. Does nothing without a database.
///
/// # Errors
/// When the database cannot be used.
pub async fn follow(database: Option<&str>, loading: &Loading) -> Result<()> {
    let (Some(database), Some(keys)) = (database, loading.stored_keys()) else { return Ok(()) };
    let store = throng_store::open(database).await.context("cannot use the database of keys")?;
    keys.refresh(&*store).await.context("cannot read the keys")?;
    tokio::spawn(keys.follow(store));
    Ok(())
}
