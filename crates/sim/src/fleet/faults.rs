//! Faults that a run injects.

use throng_core::time::{Nanos, Timestamp};

use crate::error::{SimError, check_positive};

/// A fault of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// The process ends at once and loses its requests.
    Kill {
        /// Index of the replica.
        replica: usize,
        /// Time of the fault.
        at: Timestamp,
        /// Time until a new process runs; `None`: never.
        restart_after: Option<Nanos>,
    },
    /// A replica's steps take longer.
    Slow {
        /// Index of the replica.
        replica: usize,
        /// Time of the fault.
        at: Timestamp,
        /// Duration of the fault.
        lasting: Nanos,
        /// Factor on the time of steps.
        factor: f64,
    },
    /// No messages pass between gateway and replica, in either direction.
    Partition {
        /// Index of the replica.
        replica: usize,
        /// Time of the fault.
        at: Timestamp,
        /// Duration of the fault.
        lasting: Nanos,
    },
    /// The step that ends next fails as a whole.
    FailStep {
        /// Index of the replica.
        replica: usize,
        /// Time of the fault.
        at: Timestamp,
    },
}

impl Fault {
    /// Time of its beginning.
    pub fn at(&self) -> Timestamp {
        let (Self::Kill { at, .. }
        | Self::Slow { at, .. }
        | Self::Partition { at, .. }
        | Self::FailStep { at, .. }) = self;
        *at
    }

    /// Index of the replica.
    pub fn replica(&self) -> usize {
        let (Self::Kill { replica, .. }
        | Self::Slow { replica, .. }
        | Self::Partition { replica, .. }
        | Self::FailStep { replica, .. }) = self;
        *replica
    }

    /// Checks the fault for a fleet of this number of replicas.
    ///
    /// # Errors
    /// The error names the field.
    pub fn check(&self, n_replicas: usize) -> Result<(), SimError> {
        if self.replica() >= n_replicas {
            let problem = format!("there is no replica {} among {n_replicas}", self.replica());
            return Err(SimError::setting("fault.replica", problem));
        }
        match self {
            Self::Slow { factor, .. } => check_positive("fault.factor", *factor).map(|_| ()),
            Self::Kill { .. } | Self::Partition { .. } | Self::FailStep { .. } => Ok(()),
        }
    }
}
