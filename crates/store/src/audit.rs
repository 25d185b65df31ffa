//! The audit of residency rules, as data: where requests that are bound to regions went. Does not know
//! databases.

/// Most lines of one answer.
pub const MAX_AUDIT_LINES: usize = 1_000;

/// Event of a line of the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditEvent {
    /// A request was sent to a replica.
    Placed,
    /// A request could be sent nowhere.
    Refused,
    /// A gateway has started with this rule.
    Rule,
}

impl AuditEvent {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Placed, Self::Refused, Self::Rule];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Refused => "refused",
            Self::Rule => "rule",
        }
    }
}

/// A line of the audit. Names that do not exist are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Its name, different from those of all other lines: a line that is written again changes nothing.
    pub id: String,
    /// Time of the event, in milliseconds since the epoch.
    pub at_unix_ms: u64,
    /// Kind of the error.
    pub event: AuditEvent,
    /// The request's id, as its answer shows it.
    pub request_id: String,
    /// The organisation's name; `none` for clients without one, `*` for the rule of all others.
    pub organisation: String,
    /// The model that it is for.
    pub model: String,
    /// The only regions that it may go to, separated by commas.
    pub permitted: String,
    /// The replica that it was sent to.
    pub replica: String,
    /// Region of that replica.
    pub region: String,
    /// Reason why it was refused.
    pub reason: String,
}

/// A question about the audit: lines in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// First millisecond.
    pub start_unix_ms: u64,
    /// Millisecond after the last.
    pub end_unix_ms: u64,
    /// Organisation whose lines are wanted; when absent, all.
    pub organisation: Option<String>,
    /// Number of a line after which the wanted ones were written.
    pub after: u64,
    /// Most lines, up to [`MAX_AUDIT_LINES`].
    pub limit: usize,
}
