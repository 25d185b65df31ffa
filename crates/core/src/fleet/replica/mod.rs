//! Types in which replicas report, whether they are in this process or in another one.

mod continuation;
mod event;
mod load;
mod ranks;

pub use continuation::ResumedContinuation;
pub use event::{StreamEvent, Timing, TokenReport};
pub use load::{Evictions, Load, Status, StepTokens, Totals};
pub use ranks::{RankCounters, RankReport, RunningRanks};
