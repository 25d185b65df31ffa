//! Metrics of a fleet: model aliases, workers and upstream engines, and the desired number of workers.

mod aliases;
mod engines;
mod scale;

pub use self::aliases::AliasMetrics;
pub use self::engines::EngineStatus;
pub(super) use self::engines::EngineStatusCollector;
pub(super) use self::scale::ScaleCollector;
