//! Transactions that close their connection unless they are committed or rolled back. Does not know the
//! changes.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool};

use crate::error::StoreError;

/// A transaction. Dropping it before its end closes its connection, which rolls it back: after an error the
/// database may have ended the transaction itself (SQLite does on a full disk), so the connection's state
/// is unreliable.
pub struct Transaction {
    connection: PoolConnection<Any>,
    has_ended: bool,
}

impl Transaction {
    /// Starts a transaction with this statement. A connection that is opened here to replace a closed one
    /// has the priority of the calling thread.
    pub async fn begin(pool: &AnyPool, statement: &'static str) -> Result<Self, StoreError> {
        let mut transaction = Self { connection: pool.acquire().await?, has_ended: false };
        sqlx::raw_sql(statement).execute(&mut *transaction).await?;
        Ok(transaction)
    }

    /// Commits the changes.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    /// Rolls the changes back.
    pub async fn rollback(self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), StoreError> {
        sqlx::raw_sql(statement).execute(&mut *self).await?;
        self.has_ended = true;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.has_ended {
            self.connection.close_on_drop();
        }
    }
}
