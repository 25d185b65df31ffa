//! Traces of services, read line by line.

mod access_log;
mod azure;
mod lines;
mod mooncake;

use std::io::BufRead;

use throng_core::time::Timestamp;

use super::{TimedRequest, Workload};
use crate::error::{SimError, check_positive};

pub use access_log::AccessLogTrace;
pub use azure::AzureTrace;
pub use mooncake::MooncakeTrace;

/// A trace whose times are divided by a factor: 2 replays it twice as fast.
#[derive(Debug)]
pub struct Faster<W> {
    workload: W,
    factor: f64,
}

impl<W: Workload> Faster<W> {
    /// A workload that is faster by `factor`.
    ///
    /// # Errors
    /// When the factor is not a number above 0.
    pub fn new(workload: W, factor: f64) -> Result<Self, SimError> {
        Ok(Self { workload, factor: check_positive("speed", factor)? })
    }
}

impl<W: Workload> Workload for Faster<W> {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        let timed = self.workload.next_request()?;
        Ok(timed.map(|timed| TimedRequest { at: scaled(timed.at, self.factor), ..timed }))
    }

    fn follow_up(&mut self, ended: &super::EndedRequest) -> Option<TimedRequest> {
        self.workload.follow_up(ended)
    }
}

fn scaled(at: Timestamp, factor: f64) -> Timestamp {
    Timestamp::from_ns((at.as_ns() as f64 / factor) as u64)
}

/// Reads a whole trace into memory.
///
/// # Errors
/// Those of the trace; [`SimError::Empty`] when it has no request.
pub fn read_all(trace: &mut dyn Workload) -> Result<Vec<TimedRequest>, SimError> {
    let mut all = Vec::new();
    while let Some(timed) = trace.next_request()? {
        all.push(timed);
    }
    if all.is_empty() { Err(SimError::Empty) } else { Ok(all) }
}

/// Format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    Azure,
    /// JSON lines with `hash_ids`.
    Mooncake,
    /// The access log of a server.
    AccessLog,
}

impl TraceFormat {
    /// The format of a file that begins with this line.
    pub fn of_first_line(line: &str) -> Option<Self> {
        if line.trim_start().starts_with('{') && line.contains("\"hash_ids\"") {
            Some(Self::Mooncake)
        } else if line.trim() == azure::HEADER {
            Some(Self::Azure)
        } else if line.trim_start().starts_with("{\"time\":") {
            Some(Self::AccessLog)
        } else {
            None
        }
    }

    /// Opens a trace of this format.
    pub fn open(self, reader: impl BufRead + Send + 'static) -> Box<dyn Workload> {
        match self {
            Self::Azure => Box::new(AzureTrace::new(reader)),
            Self::Mooncake => Box::new(MooncakeTrace::new(reader)),
            Self::AccessLog => Box::new(AccessLogTrace::new(reader)),
        }
    }
}
