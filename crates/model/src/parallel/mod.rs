//! A model that is divided over several devices: the part of each, and the exchange of results. Does not know
//! processes, and the order of a step's exchanges.

mod cut;
mod cuts;
mod grid;
pub mod group;
mod part;
pub(crate) mod pictures;
pub mod prediction;
pub mod probe;
mod sharded_source;
mod stages;

pub use grid::Grid;
pub use part::{ModelPart, PartError};
pub(crate) use part::{OwnPart, shard_blocks};
pub(crate) use sharded_source::ShardedSource;
pub use stages::{RankLinks, StageLinks};
