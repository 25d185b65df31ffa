//! `throng store`: copies and checks the database, prints its audit, exports and deletes tenants' stored
//! objects.

mod audit;
mod tenants;

use anyhow::Result;
use throng_store::open_existing;

use crate::args::{StoreArgs, StoreCommand};
use crate::process::output;

/// Runs the command.
///
/// # Errors
/// When the database cannot be used or is damaged, or the copy's file exists.
pub async fn run(arguments: &StoreArgs) -> Result<()> {
    match &arguments.command {
        StoreCommand::Backup { file, database } => {
            open_existing(&database.database).await?.backup(file).await?;
            Ok(output::line(format!("copied to {}", file.display()))?)
        }
        StoreCommand::Audit(arguments) => audit::run(arguments).await,
        StoreCommand::Export(arguments) => tenants::export(arguments).await,
        StoreCommand::Delete(arguments) => tenants::delete(arguments).await,
        StoreCommand::Check { database } => {
            open_existing(&database.database).await?.check().await?;
            Ok(output::line("the database is whole")?)
        }
    }
}
