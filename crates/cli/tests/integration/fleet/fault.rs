//! What happens to a worker, or to the network before it, in the middle of its streams. Does not know
//! streams.

use std::time::Duration;

use throng_testkit::fault_proxy::{Direction, FaultProxy, Flow};

/// Delay of the slow network, each way: a round trip of it is shorter than a worker may be silent.
const SLOW: Duration = Duration::from_millis(200);

/// What happens to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    /// Stopped for so long, then continued.
    Stop(Duration),
    /// Until all answers have come.
    Network(NetworkFault),
}

/// What happens to its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkFault {
    /// Connections are accepted, nothing is delivered.
    BlackHole,
    /// The worker does not hear the gateway.
    PartitionToWorker,
    /// The gateway does not hear the worker.
    PartitionToGateway,
    /// The worker's ends of all connections are gone, and the gateway is not told.
    HalfOpen,
    /// All connections are lost.
    Loss,
    /// Everything takes longer.
    Latency,
}

impl NetworkFault {
    pub const ALL: [Self; 6] = [
        Self::BlackHole,
        Self::PartitionToWorker,
        Self::PartitionToGateway,
        Self::HalfOpen,
        Self::Loss,
        Self::Latency,
    ];

    /// Begins the fault, which lasts until the proxy is healed.
    pub fn begin(self, proxy: &FaultProxy) {
        match self {
            Self::BlackHole => proxy.hold_all(),
            Self::PartitionToWorker => proxy.set(Direction::ToServer, Flow::Held),
            Self::PartitionToGateway => proxy.set(Direction::ToClient, Flow::Held),
            Self::HalfOpen => proxy.leave_half_open(),
            Self::Loss => proxy.break_connections(),
            Self::Latency => {
                proxy.set(Direction::ToServer, Flow::Passes(SLOW));
                proxy.set(Direction::ToClient, Flow::Passes(SLOW));
            }
        }
    }

    /// Whether the worker cannot answer while the fault lasts, so that the gateway must take it out of
    /// rotation.
    pub fn ends_rotation(self) -> bool {
        matches!(self, Self::BlackHole | Self::PartitionToWorker | Self::PartitionToGateway)
    }
}
