//! The return type of database methods.

use futures_util::future::BoxFuture;

use crate::error::StoreError;

/// Result of a store's methods.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;
