//! Counts the usage of requests: in the journal while they run, in the database in batches afterwards, and
//! against the budgets of keys, users, projects and organisations. Does not know how tokens are generated.
//!
//! No request waits for the database. While it fails, ended requests stay in the journal, and budgets are
//! counted in this process.

mod audit;
mod meter;
mod periods;
mod prices;
mod upkeep;
mod writer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use throng_core::fleet::limits::{Accounts, BudgetRefusal, BudgetScope, Spending};
use throng_store::{
    ApiKey, Cost, Journal, LedgerEntry, MAX_TEXT_BYTES, Outcome, Store, bounded_text, now_unix_s,
};

use audit::AuditQueue;
pub use audit::Audited;
pub use meter::Meter;
pub use prices::{ModelPrice, PriceTable};
pub use writer::LedgerError;

/// Usage of all requests. Does not count until it has been opened.
#[derive(Debug)]
pub struct Ledger {
    opened: OnceLock<Opened>,
    prices: PriceTable,
    accounts: Mutex<Accounts>,
    /// Number of entries that the journal could not store.
    n_lost: AtomicU64,
    /// Number of entries and audit lines that the database rejected.
    n_refused: AtomicU64,
    audit: AuditQueue,
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Opened {
    journal: Arc<Journal>,
    store: Arc<dyn Store>,
}

/// A request to be counted.
#[derive(Debug)]
pub struct Counted<'a> {
    /// Name of the caller, for keys of the configuration.
    pub tenant: &'a str,
    /// API key of the request, if it is stored.
    pub key: Option<&'a ApiKey>,
    /// Budgets that the request is charged to.
    pub scopes: &'a [BudgetScope],
    /// Id of the request, as in its response.
    pub request_id: &'a str,
    /// Value of `user`.
    pub user: &'a str,
    /// Model or adapter named in the request, and the model's own name.
    pub models: [&'a str; 2],
    /// Maximum number of prompt tokens.
    pub prompt_tokens: u64,
    /// Maximum number of output tokens.
    pub generated_tokens: u64,
}

/// Reason why a request must not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncounted {
    /// The request could exceed a budget.
    Budget(BudgetRefusal),
    /// The request has a budget, and its entry cannot be stored.
    NoRoom,
}

impl From<BudgetRefusal> for Uncounted {
    fn from(refusal: BudgetRefusal) -> Self {
        Self::Budget(refusal)
    }
}

impl Ledger {
    /// Creates a ledger that counts nothing yet.
    pub fn new(prices: PriceTable) -> Self {
        Self {
            opened: OnceLock::new(),
            prices,
            accounts: Mutex::default(),
            n_lost: AtomicU64::new(0),
            n_refused: AtomicU64::new(0),
            audit: AuditQueue::default(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// The database, after the ledger has been opened.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.opened.get().map(|opened| &opened.store)
    }

    /// Number of entries that wait for the database, and number of those lost because the journal could not
    /// store them.
    pub fn n_waiting_and_lost(&self) -> (u64, u64) {
        let n_waiting = self.opened.get().map_or(0, |opened| opened.journal.n_waiting());
        (n_waiting as u64, self.n_lost.load(Ordering::Relaxed))
    }

    /// Number of entries and audit lines set aside because the database rejected them.
    pub fn n_refused(&self) -> u64 {
        self.n_refused.load(Ordering::Relaxed)
    }

    /// Reason why the database cannot be written at present.
    pub fn write_fault(&self) -> Option<String> {
        self.store().and_then(|store| store.write_fault())
    }

    /// Queues an audit line. Does not wait.
    pub fn audit(&self, told: &Audited<'_>) {
        self.audit.push(told);
    }

    /// Number of audit lines that wait for the database, and number of lost ones.
    pub fn audit_waiting_and_lost(&self) -> (u64, u64) {
        self.audit.n_waiting_and_lost()
    }

    /// Starts counting a request, and reserves the maximum that it can spend. `None` if requests are not
    /// counted.
    ///
    /// # Errors
    /// When the request could exceed a budget, or has one and its entry cannot be stored.
    pub fn begin(self: &Arc<Self>, request: &Counted<'_>) -> Result<Option<Meter>, Uncounted> {
        let Some(Opened { journal, .. }) = self.opened.get() else { return Ok(None) };
        let prices = self.prices.of(&request.models);
        let now = now_unix_s();
        let cost = prices.most(request.prompt_tokens, request.generated_tokens);
        let most =
            Spending { tokens: request.prompt_tokens.saturating_add(request.generated_tokens), cost: cost.0 };
        let reservation = self.accounts().reserve(request.scopes, most, periods::at(now))?;
        let text = |text: &str| bounded_text(text, MAX_TEXT_BYTES).into_owned();
        let key = request.key;
        let entry = LedgerEntry {
            id: uuid::Uuid::now_v7().simple().to_string(),
            request_id: text(request.request_id),
            at_unix_s: now,
            organisation_id: key.map(|key| key.organisation_id.clone()).unwrap_or_default(),
            project_id: key.map(|key| key.project_id.clone()).unwrap_or_default(),
            key_id: key.map_or_else(|| text(request.tenant), |key| key.id.clone()),
            user: text(request.user),
            model: text(request.models[0]),
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            prices,
            latency_ms: 0,
            outcome: Outcome::Abort,
        };
        let slot = journal.take(&entry);
        let has_budget = request.scopes.iter().any(|scope| !scope.budgets.is_empty());
        if let (Err(error), true) = (&slot, has_budget) {
            self.accounts().settle(reservation, Spending::default(), periods::at(now));
            tracing::error!(
                request = request.request_id, %error,
                "a request with a budget is refused: neither the journal nor the disk has room for its entry"
            );
            return Err(Uncounted::NoRoom);
        }
        Ok(Some(Meter::new(self.clone(), entry, reservation, slot.ok())))
    }

    /// The date on which the current day's or month's budgets are reset.
    pub fn reset_date(&self, is_daily: bool) -> String {
        periods::reset_date(now_unix_s(), is_daily)
    }

    fn journal(&self) -> Option<&Journal> {
        self.opened.get().map(|opened| &*opened.journal)
    }

    fn lose(&self, entry: &LedgerEntry, error: &std::io::Error) {
        self.n_lost.fetch_add(1, Ordering::Relaxed);
        tracing::error!(request = entry.request_id, %error, "an entry of the ledger is lost: the journal cannot take it");
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The spending in an entry.
fn spending(entry: &LedgerEntry) -> Spending {
    Spending { tokens: entry.n_tokens(), cost: entry.cost().0 }
}

/// The scopes whose budgets an entry is charged to.
fn scopes_of(entry: &LedgerEntry) -> Vec<&str> {
    let scopes = [entry.key_id.as_str(), &entry.project_id, &entry.organisation_id];
    scopes.into_iter().filter(|scope| !scope.is_empty()).collect()
}

/// Sums the spending of keys, projects and organisations on a day and in its month.
fn totals_by_scope(
    totals: &[throng_store::DailyTotal],
    day: u64,
) -> BTreeMap<Arc<str>, (Spending, Spending)> {
    let mut by_scope: BTreeMap<Arc<str>, (Spending, Spending)> = BTreeMap::new();
    let add = |to: &mut Spending, n_tokens: u64, cost: Cost| {
        to.tokens = to.tokens.saturating_add(n_tokens);
        to.cost = to.cost.saturating_add(cost.0);
    };
    for total in totals {
        for scope in [&total.key_id, &total.project_id, &total.organisation_id] {
            if scope.is_empty() {
                continue;
            }
            let (of_day, of_month) = by_scope.entry(Arc::from(scope.as_str())).or_default();
            add(of_month, total.n_tokens, total.cost);
            if total.day == day {
                add(of_day, total.n_tokens, total.cost);
            }
        }
    }
    by_scope
}
