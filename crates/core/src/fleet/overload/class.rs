//! How much waiting a request bears, and so who is refused first. Does not know clients.

/// A class of service, the most urgent first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// Requests by which operators look after the service.
    System,
    /// Somebody waits in front of a screen.
    Interactive,
    /// Whoever says nothing.
    #[default]
    Default,
    /// Work that nobody waits for.
    Batch,
}

impl ServiceClass {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::System, Self::Interactive, Self::Default, Self::Batch];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Interactive => "interactive",
            Self::Default => "default",
            Self::Batch => "batch",
        }
    }

    /// The class of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name().eq_ignore_ascii_case(name))
    }

    /// The part of the longest wait that the class may add to. When much waits, the last classes are refused
    /// first.
    pub(super) fn band(self) -> f64 {
        match self {
            Self::System | Self::Interactive => 1.0,
            Self::Default => 0.75,
            Self::Batch => 0.35,
        }
    }
}
