//! A model that is divided over several devices: which part each has, and how the parts exchange what they
//! compute. Does not know processes.

mod cut;
mod cuts;
mod grid;
pub mod group;
mod part;
mod pictures;
mod sharded_source;
mod stages;
mod steps;

pub use grid::Grid;
pub use part::{ModelPart, PartError};
pub(crate) use part::{OwnPart, shard_blocks};
pub(crate) use sharded_source::ShardedSource;
pub use stages::{RankLinks, StageLinks};
pub use steps::{FollowError, Leader, follow};
