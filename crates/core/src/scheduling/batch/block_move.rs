//! Moves of blocks' bytes between kinds of memory, which a step makes first. Does not decide about them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::BlockId;

/// A kind of memory that can hold the bytes of blocks, the nearest to the executor first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// The memory from which the executor computes. Its blocks are those of the `BlockPool`.
    Device,
    /// Memory of the executor's host that it does not compute from.
    Host,
    /// A disk of the executor's host.
    Disk,
    /// The memory of another process.
    Remote,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Remote => "remote",
        })
    }
}

/// A place for the bytes of one block: keys and values of [`BLOCK_TOKENS`](super::BLOCK_TOKENS) tokens over
/// all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockLocation {
    /// Kind of the memory.
    pub tier: Tier,
    /// Index of the block in that memory.
    pub block: BlockId,
}

impl BlockLocation {
    /// A block of the memory from which the executor computes.
    pub const fn device(block: BlockId) -> Self {
        Self { tier: Tier::Device, block }
    }

    /// A block of the host's memory.
    pub const fn host(block: BlockId) -> Self {
        Self { tier: Tier::Host, block }
    }
}

/// A copy of one block's bytes to another place. Those at `from` stay until they are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockMove {
    /// Location that is read.
    pub from: BlockLocation,
    /// The place that is overwritten.
    pub to: BlockLocation,
}

impl BlockMove {
    /// A copy within the memory from which the executor computes.
    pub const fn within_device(from: BlockId, to: BlockId) -> Self {
        Self { from: BlockLocation::device(from), to: BlockLocation::device(to) }
    }

    /// The two blocks of a copy within the device; `None` of a move that leaves or enters it.
    pub fn device_blocks(&self) -> Option<(BlockId, BlockId)> {
        let is_within = self.from.tier == Tier::Device && self.to.tier == Tier::Device;
        is_within.then_some((self.from.block, self.to.block))
    }
}
