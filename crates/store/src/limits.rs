//! How much a key, a project, an organisation or a project's users may use, as data. Does not know who counts
//! it.

/// Kind of a limit. Absent limits do not restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Requests in a minute.
    RequestsPerMinute,
    /// Tokens in a minute, of prompts and outputs together.
    TokensPerMinute,
    /// Requests at a time.
    ConcurrentRequests,
    /// Tokens in a calendar day (UTC).
    TokensPerDay,
    /// Tokens in a calendar month (UTC).
    TokensPerMonth,
    /// Money in a calendar day (UTC), in micro-dollars.
    CostPerDay,
    /// Money in a calendar month (UTC), in micro-dollars.
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

    /// Its name in databases and in JSON.
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

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is an amount of money.
    pub const fn is_money(self) -> bool {
        matches!(self, Self::CostPerDay | Self::CostPerMonth)
    }
}

/// The limits of one scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits([Option<u64>; LimitKind::ALL.len()]);

impl Limits {
    /// Makes limits of these kinds; the others are not limited.
    pub fn of(limits: impl IntoIterator<Item = (LimitKind, u64)>) -> Self {
        let mut all = Self::default();
        limits.into_iter().for_each(|(kind, limit)| all.set(kind, Some(limit)));
        all
    }

    /// The limit of this kind.
    pub fn get(&self, kind: LimitKind) -> Option<u64> {
        self.0[kind as usize]
    }

    /// Sets or takes away one limit.
    pub fn set(&mut self, kind: LimitKind, limit: Option<u64>) {
        self.0[kind as usize] = limit;
    }

    /// Whether nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// Changes of limits: one that is not named stays, `None` takes it away.
pub type LimitChange = Vec<(LimitKind, Option<u64>)>;

/// Holder of limits, by the names that people use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitScope {
    /// An organisation.
    Organisation(String),
    /// A project of an organisation.
    Project {
        /// The organisation's name.
        organisation: String,
        /// The project's name.
        project: String,
    },
    /// Each user of a project, as requests name them with `user`.
    EachUser {
        /// The organisation's name.
        organisation: String,
        /// The project's name.
        project: String,
    },
}
