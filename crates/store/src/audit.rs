//! The audit of residency rules, as data: destinations of region-bound requests. Does not know databases.

/// Maximum number of lines in a query's result.
pub const MAX_AUDIT_LINES: usize = 1_000;

/// Event in a line of the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditEvent {
    /// A request was sent to a replica.
    Placed,
    /// No replica in a permitted region accepted a request.
    Refused,
    /// A gateway started with this rule.
    Rule,
}

impl AuditEvent {
    /// All kinds of events.
    pub const ALL: [Self; 3] = [Self::Placed, Self::Refused, Self::Rule];

    /// Name of the event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Refused => "refused",
            Self::Rule => "rule",
        }
    }
}

/// A line of the audit. Absent names are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Unique id of the line: writing a line again has no effect.
    pub id: String,
    /// Time of the event, in milliseconds since the epoch.
    pub at_unix_ms: u64,
    /// Kind of the event.
    pub event: AuditEvent,
    /// Id of the request, as in its response.
    pub request_id: String,
    /// Name of the organisation; `none` for clients without one, `*` for the rule of all others.
    pub organisation: String,
    /// Model of the request.
    pub model: String,
    /// Regions that the request is restricted to, separated by commas.
    pub permitted: String,
    /// Replica that the request was sent to.
    pub replica: String,
    /// Region of the replica.
    pub region: String,
    /// Reason for the refusal.
    pub reason: String,
}

/// A query for lines of the audit, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// First millisecond of the period.
    pub start_unix_ms: u64,
    /// Millisecond after the last.
    pub end_unix_ms: u64,
    /// Organisation of the lines; `None`: all.
    pub organisation: Option<String>,
    /// Number of the last line of the previous page; 0 for the first page.
    pub after: u64,
    /// Maximum number of lines, up to [`MAX_AUDIT_LINES`].
    pub limit: usize,
}
