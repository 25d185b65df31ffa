//! What the methods of databases return.

use futures_util::future::BoxFuture;

use crate::error::StoreError;

/// What a store's methods return.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;
