//! Workers of a gateway while they are listed, and afterwards until their last stream has ended. Does not
//! know sources.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::follow::follow;
use super::membership::Membership;
use super::replica_config::Credentials;
use super::roster::{MAX_DRAIN, Serve};
use crate::discovery::Found;
use crate::replica::{Link, Links, WorkerAddress};

/// Serves workers.
#[derive(Debug)]
pub(super) struct Workers {
    /// Models of the workers.
    pub membership: Arc<Membership>,
    /// Connections to the workers.
    pub links: Arc<Links>,
}

impl Serve for Workers {
    type Settings = Credentials;
    type Key = WorkerAddress;
    const NAME: &'static str = "workers";

    fn key(_: usize, found: &Found) -> WorkerAddress {
        found.address.clone()
    }

    fn serve(
        &self,
        credentials: &Credentials,
        found: &Found,
        delisted: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()> {
        let link = Arc::new(Link::new(credentials.endpoint(found)));
        self.links.add(link.clone());
        let (membership, links) = (self.membership.clone(), self.links.clone());
        let serving = async move {
            let leaving = async {
                let _ = delisted.await;
                tracing::info!(worker = link.endpoint.address.to_string(), "a worker is no longer listed");
                membership.leave(&link).await;
                if tokio::time::timeout(MAX_DRAIN, link.drained()).await.is_err() {
                    tracing::warn!(worker = link.endpoint.label(), "its streams go on elsewhere");
                }
            };
            tokio::select! {
                () = follow(membership.clone(), link.clone()) => {}
                () = leaving => {}
            }
            links.remove(&link);
        };
        serving.boxed()
    }
}
