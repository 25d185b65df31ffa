//! Connects to PostgreSQL. All tables are in the schema `throng`, so that a database can be shared with
//! other programs.

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyPool, Executor};

use super::WAIT_LIMIT;
use crate::error::StoreError;

const MAX_CONNECTIONS: u32 = 4;

/// Connects. The server also cancels statements that exceed the callers' timeout.
pub async fn connect(url: &str) -> Result<AnyPool, StoreError> {
    sqlx::any::install_default_drivers();
    // The error about a URL could quote it with its password.
    let options: AnyConnectOptions = url.parse().map_err(|_| StoreError::BadUrl)?;
    let settings = format!(
        "SET search_path TO throng; SET statement_timeout = {0}; SET lock_timeout = {0}",
        WAIT_LIMIT.as_millis()
    );
    let pool = AnyPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(WAIT_LIMIT)
        .after_connect(move |connection, _| {
            let settings = sqlx::AssertSqlSafe(settings.clone());
            Box::pin(async move { connection.execute(sqlx::raw_sql(settings)).await.map(drop) })
        })
        .connect_with(options)
        .await?;
    Ok(pool)
}
