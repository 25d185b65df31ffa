//! What is counted of several machines: names that stand for models, workers and upstream engines, how many
//! there should be.

mod aliases;
mod engines;
mod scale;

pub use self::aliases::AliasMetrics;
pub use self::engines::EngineStatus;
pub(super) use self::engines::EngineStatusCollector;
pub(super) use self::scale::ScaleCollector;
