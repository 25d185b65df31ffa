//! The replica that may deliver to a stream: at most one, and each token once. Does not read tokens.

use std::collections::{BTreeSet, HashMap};

use crate::fleet::routing::ReplicaId;

/// Number of one client's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Right of one replica to deliver to one stream. A later epoch ends the one before it; no epoch is issued
/// twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Treatment of a received token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The token is delivered to the client.
    Accepted,
    /// The token was delivered before, and is dropped.
    Repeated,
    /// The token's epoch is over, or the stream has ended; it is dropped.
    Stale,
    /// An earlier token is missing: the stream must be resumed on a replica from [`Ownership::n_delivered`]
    /// tokens.
    Missing,
}

/// The maximum number of streams is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{max_streams} streams are open, which is the most")]
pub struct TooManyStreams {
    /// Maximum number of open streams.
    pub max_streams: usize,
}

#[derive(Debug)]
struct Stream {
    owner: ReplicaId,
    epoch: Epoch,
    n_delivered: u64,
}

/// The owners of all open streams.
#[derive(Debug)]
pub struct Ownership {
    max_streams: usize,
    n_epochs: u64,
    streams: HashMap<StreamId, Stream>,
    by_owner: BTreeSet<(ReplicaId, StreamId)>,
}

impl Ownership {
    /// Creates the map without streams, of which there are never more than `max_streams`.
    pub fn new(max_streams: usize) -> Self {
        Self { max_streams, n_epochs: 0, streams: HashMap::new(), by_owner: BTreeSet::new() }
    }

    /// Assigns a stream to a replica: a new stream, or one that is taken from its owner, which then can
    /// deliver nothing more.
    pub fn assign(&mut self, id: StreamId, owner: ReplicaId) -> Result<Epoch, TooManyStreams> {
        let before = self.streams.get(&id).map(|stream| (stream.owner, stream.n_delivered));
        if before.is_none() && self.streams.len() >= self.max_streams {
            return Err(TooManyStreams { max_streams: self.max_streams });
        }
        if let Some((before, _)) = before {
            self.by_owner.remove(&(before, id));
        }
        self.n_epochs += 1;
        let (epoch, n_delivered) = (Epoch(self.n_epochs), before.map_or(0, |(_, n_delivered)| n_delivered));
        self.streams.insert(id, Stream { owner, epoch, n_delivered });
        self.by_owner.insert((owner, id));
        Ok(epoch)
    }

    /// Judges token `position` of a stream, which arrived under an epoch. Positions count from zero, through
    /// all owners.
    #[must_use]
    pub fn deliver(&mut self, id: StreamId, epoch: Epoch, position: u64) -> Delivery {
        match self.streams.get_mut(&id).filter(|stream| stream.epoch == epoch) {
            None => Delivery::Stale,
            Some(stream) if position < stream.n_delivered => Delivery::Repeated,
            Some(stream) if position > stream.n_delivered => Delivery::Missing,
            Some(stream) => {
                stream.n_delivered += 1;
                Delivery::Accepted
            }
        }
    }

    /// Ends a stream, whose later tokens are dropped.
    pub fn end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            self.by_owner.remove(&(stream.owner, id));
        }
    }

    /// The tokens delivered to an open stream.
    pub fn n_delivered(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id).map(|stream| stream.n_delivered)
    }

    /// The replica that owns an open stream.
    pub fn owner(&self, id: StreamId) -> Option<ReplicaId> {
        self.streams.get(&id).map(|stream| stream.owner)
    }

    /// The streams of one replica, which must be assigned anew when it is lost.
    pub fn of(&self, owner: ReplicaId) -> impl Iterator<Item = StreamId> + '_ {
        let range = (owner, StreamId(0))..=(owner, StreamId(u64::MAX));
        self.by_owner.range(range).map(|(_, id)| *id)
    }
}
