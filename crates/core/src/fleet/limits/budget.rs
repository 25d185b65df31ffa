//! Budgets of tokens and money in a calendar day and month. Does not know calendars, keys or databases.
//!
//! Spending is counted in a ledger elsewhere. [`Accounts`] has the part that is known to be in the ledger,
//! the part of ended requests that may not be in it yet, and the most that running requests may still
//! spend: the three together never exceed a budget.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens and money spent. Money is in the smallest unit that its owner counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spending {
    /// Number of tokens, of prompts and outputs together.
    pub tokens: u64,
    /// Money in its owner's smallest unit.
    pub cost: u128,
}

/// The most that may be spent in a period; an absent budget does not restrict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of tokens, if bounded.
    pub tokens: Option<u64>,
    /// Maximum amount of money, if bounded.
    pub cost: Option<u128>,
}

/// Budgets of a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Budget of a day.
    pub day: Budget,
    /// Budget of a month.
    pub month: Budget,
}

impl Budgets {
    /// Whether there is no budget.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Numbers of the current day and month; they never decrease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Periods {
    /// Number of the day.
    pub day: u64,
    /// Number of the month.
    pub month: u64,
}

/// Holder of a budget, and its amounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetScope {
    /// Name that no other scope has.
    pub name: Arc<str>,
    /// Amounts that it may spend.
    pub budgets: Budgets,
}

/// A budget that a request would exceed. Amounts are tokens, or money in its owner's smallest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// The index of the scope among those of the request.
    pub scope: usize,
    /// Whether the budget is the day's; otherwise it is the month's.
    pub is_daily: bool,
    /// Whether the budget is one of money; otherwise it is one of tokens.
    pub is_money: bool,
    /// Amount of the budget.
    pub limit: u128,
    /// Amount spent.
    pub spent: u128,
    /// Amount that running requests may still spend.
    pub reserved: u128,
    /// Amount that the request may spend.
    pub needed: u128,
}

/// The maximum that a request may spend. It must be returned to [`Accounts::settle`].
#[derive(Debug)]
#[must_use]
pub struct BudgetReservation {
    scopes: Vec<Arc<str>>,
    most: Spending,
}

/// Spending of all scopes.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    accounts: BTreeMap<Arc<str>, Account>,
    periods: Periods,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    day: Spent,
    month: Spent,
    reserved: Spending,
    n_running: u64,
}

/// Spending in a period.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    /// Spending known to be in the ledger.
    written: Spending,
    /// Spending of ended requests that is not known to be in the ledger.
    unwritten: Spending,
}

impl Accounts {
    /// Reserves the most that a request may spend in all scopes together, or in none.
    ///
    /// # Errors
    /// When a budget of a scope could be exceeded.
    pub fn reserve(
        &mut self,
        scopes: &[BudgetScope],
        most: Spending,
        now: Periods,
    ) -> Result<BudgetReservation, BudgetRefusal> {
        self.advance(now);
        for (idx, scope) in scopes.iter().enumerate() {
            let account = self.accounts.get(&scope.name).copied().unwrap_or_default();
            let Budgets { day, month } = &scope.budgets;
            for (spent, budget, is_daily) in [(&account.day, day, true), (&account.month, month, false)] {
                spent.check(budget, account.reserved, most, idx, is_daily)?;
            }
        }
        let names: Vec<Arc<str>> = scopes.iter().map(|scope| scope.name.clone()).collect();
        for name in &names {
            let account = self.accounts.entry(name.clone()).or_default();
            account.reserved = account.reserved.and(most);
            account.n_running += 1;
        }
        Ok(BudgetReservation { scopes: names, most })
    }

    /// Ends a request that has spent this, and releases the rest of its reservation.
    pub fn settle(&mut self, reservation: BudgetReservation, spent: Spending, now: Periods) {
        self.advance(now);
        for name in reservation.scopes {
            let account = self.accounts.entry(name).or_default();
            account.reserved = account.reserved.without(reservation.most);
            account.n_running = account.n_running.saturating_sub(1);
            account.day.unwritten = account.day.unwritten.and(spent);
            account.month.unwritten = account.month.unwritten.and(spent);
        }
    }

    /// Notes that the spending of a request that ended in these periods is now in the ledger.
    pub fn wrote(&mut self, scopes: &[&str], spent: Spending, at: Periods) {
        for name in scopes {
            let Some(account) = self.accounts.get_mut(*name) else { continue };
            if at.day == self.periods.day {
                account.day.wrote(spent);
            }
            if at.month == self.periods.month {
                account.month.wrote(spent);
            }
        }
    }

    /// Sets the spending of each scope in the present day and month from the ledger; absent scopes have spent
    /// 0. The ledger must have been read after the last call of [`Self::wrote`].
    pub fn read(&mut self, ledger: BTreeMap<Arc<str>, (Spending, Spending)>, now: Periods) {
        self.advance(now);
        for account in self.accounts.values_mut() {
            account.day.written = Spending::default();
            account.month.written = Spending::default();
        }
        for (name, (day, month)) in ledger {
            let account = self.accounts.entry(name).or_default();
            account.day.written = day;
            account.month.written = month;
        }
        self.accounts.retain(|_, account| !account.is_empty());
    }

    /// Sets the spending of each scope in the present day from the ledger, more often than [`Self::read`]
    /// sets the month's: an increase of the day is added to the month too. The ledger must have been read
    /// after the last call of [`Self::wrote`].
    pub fn read_day(&mut self, ledger: impl IntoIterator<Item = (Arc<str>, Spending)>, now: Periods) {
        self.advance(now);
        for (name, day) in ledger {
            let account = self.accounts.entry(name).or_default();
            account.month.written = account.month.written.and(day.without(account.day.written));
            account.day.written = day;
        }
    }

    /// Starts a new day or month with a spending of 0. Periods never go back, even if clocks do.
    fn advance(&mut self, now: Periods) {
        let (new_day, new_month) = (now.day > self.periods.day, now.month > self.periods.month);
        if !new_day && !new_month {
            return;
        }
        self.periods =
            Periods { day: self.periods.day.max(now.day), month: self.periods.month.max(now.month) };
        for account in self.accounts.values_mut() {
            account.day = Spent::default();
            if new_month {
                account.month = Spent::default();
            }
        }
    }
}

impl Account {
    fn is_empty(&self) -> bool {
        self.n_running == 0
            && self.day.total() == Spending::default()
            && self.month.total() == Spending::default()
    }
}

impl Spent {
    fn total(&self) -> Spending {
        self.written.and(self.unwritten)
    }

    fn wrote(&mut self, spent: Spending) {
        self.unwritten = self.unwritten.without(spent);
        self.written = self.written.and(spent);
    }

    /// Refuses a request that could exceed the budget of this scope and period.
    fn check(
        &self,
        budget: &Budget,
        reserved: Spending,
        most: Spending,
        scope: usize,
        is_daily: bool,
    ) -> Result<(), BudgetRefusal> {
        let spent = self.total();
        let total = spent.and(reserved).and(most);
        let refusal = |is_money: bool, limit: u128| {
            let of = |spending: Spending| if is_money { spending.cost } else { spending.tokens.into() };
            let (spent, reserved, needed) = (of(spent), of(reserved), of(most));
            BudgetRefusal { scope, is_daily, is_money, limit, spent, reserved, needed }
        };
        if let Some(limit) = budget.tokens.filter(|limit| total.tokens > *limit) {
            return Err(refusal(false, limit.into()));
        }
        match budget.cost.filter(|limit| total.cost > *limit) {
            Some(limit) => Err(refusal(true, limit)),
            None => Ok(()),
        }
    }
}

impl Spending {
    fn and(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), cost: self.cost.saturating_add(other.cost) }
    }

    fn without(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_sub(other.tokens), cost: self.cost.saturating_sub(other.cost) }
    }
}
