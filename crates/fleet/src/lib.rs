//! The replicas that answer requests: local engines, remote workers and upstream engines, and the routing
//! among them. Does not know clients: their keys, limits and sockets.
#![forbid(unsafe_code)]

pub mod adapters;
mod blocks;
pub mod body_lines;
mod client_tls;
pub mod constraint;
mod discovery;
pub mod dispatch;
mod following;
pub mod replica;
pub mod upstream;
pub mod worker;

pub use blocks::{BlockPuller, PeerSettings};
pub use discovery::KubernetesApi;
pub use following::{Fleet, FleetError, FleetModels, RemoteModel, ReplicaConfig};
pub use throng_core::secret::Secret;
