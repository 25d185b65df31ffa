//! Usage limits of keys, projects, organisations and users, as data. Does not count usage.

/// Kind of a limit. A limit that is not set does not restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Requests a minute.
    RequestsPerMinute,
    /// Tokens a minute, of prompts and outputs together.
    TokensPerMinute,
    /// Concurrent requests.
    ConcurrentRequests,
    /// Tokens a calendar day (UTC).
    TokensPerDay,
    /// Tokens a calendar month (UTC).
    TokensPerMonth,
    /// Micro-dollars a calendar day (UTC).
    CostPerDay,
    /// Micro-dollars a calendar month (UTC).
    CostPerMonth,
}

impl LimitKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::RequestsPerMinute,
        Self::TokensPerMinute,
        Self::ConcurrentRequests,
        Self::TokensPerDay,
        Self::TokensPerMonth,
        Self::CostPerDay,
        Self::CostPerMonth,
    ];

    /// Name in databases and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestsPerMinute => "requests_per_minute",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::ConcurrentRequests => "concurrent_requests",
            Self::TokensPerDay => "tokens_per_day",
            Self::TokensPerMonth => "tokens_per_month",
            Self::CostPerDay => "cost_per_day",
            Self::CostPerMonth => "cost_per_month",
        }
    }

    /// The kind with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the limit is an amount of money.
    pub const fn is_money(self) -> bool {
        matches!(self, Self::CostPerDay | Self::CostPerMonth)
    }
}

/// The limits of one scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits([Option<u64>; LimitKind::ALL.len()]);

impl Limits {
    /// Creates limits of these kinds; the others are absent.
    pub fn of(limits: impl IntoIterator<Item = (LimitKind, u64)>) -> Self {
        let mut all = Self::default();
        limits.into_iter().for_each(|(kind, limit)| all.set(kind, Some(limit)));
        all
    }

    /// The limit of this kind; `None` if it is not set.
    pub fn get(&self, kind: LimitKind) -> Option<u64> {
        self.0[kind as usize]
    }

    /// Sets or removes a limit.
    pub fn set(&mut self, kind: LimitKind, limit: Option<u64>) {
        self.0[kind as usize] = limit;
    }

    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// Changes of limits: kinds that are not listed stay unchanged; `None` removes a limit.
pub type LimitChange = Vec<(LimitKind, Option<u64>)>;

/// Owner of limits, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitScope {
    /// An organisation, by its name.
    Organisation(String),
    /// A project of an organisation.
    Project {
        /// Name of the organisation.
        organisation: String,
        /// Name of the project.
        project: String,
    },
    /// Each user of a project, as named by `user` in requests.
    EachUser {
        /// Name of the organisation.
        organisation: String,
        /// Name of the project.
        project: String,
    },
}
