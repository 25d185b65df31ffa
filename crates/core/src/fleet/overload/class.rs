//! Classes of service, which determine the order in which requests are refused. Does not know clients.

/// A class of service; the variants are ordered from the most urgent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// Requests by which operators monitor the service.
    System,
    /// Requests of interactive users.
    Interactive,
    /// Requests without a class.
    #[default]
    Default,
    /// Background requests, such as batches.
    Batch,
}

impl ServiceClass {
    /// All classes of service.
    pub const ALL: [Self; 4] = [Self::System, Self::Interactive, Self::Default, Self::Batch];

    /// Name of the class.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Interactive => "interactive",
            Self::Default => "default",
            Self::Batch => "batch",
        }
    }

    /// Class with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name().eq_ignore_ascii_case(name))
    }

    /// Share of the longest wait up to which the class is admitted. When waits grow, the least urgent
    /// classes are refused first.
    pub(super) fn band(self) -> f64 {
        match self {
            Self::System | Self::Interactive => 1.0,
            Self::Default => 0.75,
            Self::Batch => 0.35,
        }
    }
}
