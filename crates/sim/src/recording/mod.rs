//! Recordings of engines and gateways, read line by line: as a workload, or as the inputs of an engine that
//! are applied again.

mod load;
mod reader;
mod rerun;
mod step_times;

pub use load::RecordedWorkload;
pub use reader::RecordingReader;
pub use rerun::{Rerun, rerun};
pub use step_times::RecordedCostModel;
