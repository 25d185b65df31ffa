//! Resolution of host names to addresses. Does not judge the addresses.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Resolver of host names.
pub(super) trait Resolver: Debug + Send + Sync {
    /// The addresses of a host.
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
#[derive(Debug)]
pub(super) struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let host = host.to_owned();
        async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        }
        .boxed()
    }
}
