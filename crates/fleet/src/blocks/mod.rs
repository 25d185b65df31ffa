//! Blocks of other workers: asks them over HTTP/2 for what this worker's engine orders. Nothing waits for a
//! worker that does not answer: its blocks count as missing, and it is not asked again for a while. Does not
//! know which blocks are worth asking for.

mod peer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use throng_core::request::{BlockHolder, PeerId};
use throng_core::secret::Secret;
use throng_engine::{Pull, PullBlocks};
use throng_wire::Holder;
use tokio::runtime::Handle;

use self::peer::Peer;
use crate::client_tls::client_tls;
use crate::replica::{Endpoint, WorkerAddress};

/// Maximum number of workers that are asked for blocks, in the life of a process.
const MAX_PEERS: usize = 1024;

/// Credentials of this worker for other workers.
#[derive(Debug, Clone, Default)]
pub struct PeerSettings {
    /// Token of all workers.
    pub token: Option<Secret>,
    /// File of certificate authorities (PEM) for the certificates of other workers; without one, workers
    /// with `throngs` addresses are not asked.
    pub ca: Option<PathBuf>,
    /// Files of the certificate and of the key to show to them.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether workers without TLS are not asked, because this one has TLS.
    pub encrypted_only: bool,
}

/// Asks other workers for blocks.
#[derive(Debug)]
pub struct BlockPuller {
    authorization: Option<HeaderValue>,
    tls: Option<Arc<rustls::ClientConfig>>,
    encrypted_only: bool,
    runtime: Handle,
    peers: Mutex<Vec<Arc<Peer>>>,
}

impl BlockPuller {
    /// Creates the puller, whose tasks run on `runtime`.
    ///
    /// # Errors
    /// When a file or the token cannot be used.
    pub fn new(settings: &PeerSettings, runtime: Handle) -> Result<Self, String> {
        let header = |token: &Secret| HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        let authorization = settings.token.as_ref().map(header).transpose();
        let mut authorization = authorization.map_err(|_| "the token cannot be sent".to_owned())?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let own = settings.certificate.as_ref().map(|(file, key)| (file.as_path(), key.as_path()));
        let tls = settings.ca.as_deref().map(|ca| client_tls(Some(ca), own, b"h2")).transpose()?;
        let (tls, encrypted_only) = (tls.map(Arc::new), settings.encrypted_only);
        Ok(Self { authorization, tls, encrypted_only, runtime, peers: Mutex::default() })
    }

    /// The number of a worker for the engine; `None` if it may not be asked, or not now.
    pub fn holder(&self, holder: &Holder) -> Option<BlockHolder> {
        let address: WorkerAddress = holder.address.parse().ok()?;
        let is_permitted = if address.is_encrypted() { self.tls.is_some() } else { !self.encrypted_only };
        if !is_permitted {
            return None;
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |peer: &Arc<Peer>| peer.is(&address, holder.server_name.as_deref());
        let number = match peers.iter().position(is_known) {
            Some(number) => number,
            None if peers.len() >= MAX_PEERS => return None,
            None => {
                peers.push(Arc::new(Peer::new(Endpoint {
                    address,
                    name: None,
                    server_name: holder.server_name.clone(),
                    authorization: self.authorization.clone(),
                    tls: self.tls.clone(),
                    region: None,
                })));
                peers.len() - 1
            }
        };
        let peer = PeerId(number as u32);
        (!peers[number].rests()).then_some(BlockHolder { peer, n_blocks: holder.n_blocks })
    }
}

impl PullBlocks for BlockPuller {
    fn pull(&self, pull: Pull) {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(pull.peer().0 as usize) {
            self.runtime.spawn(Arc::clone(peer).bring(pull));
        }
    }
}
