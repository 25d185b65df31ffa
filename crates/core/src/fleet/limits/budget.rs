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
    /// Tokens of prompts and outputs together.
    pub tokens: u64,
    /// Money.
    pub cost: u128,
}

/// The most that may be spent in a period; an absent budget does not restrict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Budget of tokens.
    pub tokens: Option<u64>,
    /// Budget of money.
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

/// The most that a request may spend. It must be given back to [`Accounts::settle`].
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
    /// Reserves the most that a request may spend in all scopes, or in none of them.
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

    /// Sets the spending of each scope in the present day and month from the ledger; absent scopes have
    /// spent nothing. The ledger must have been read after the last call of [`Self::wrote`].
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

    /// Starts a new day or month with nothing spent. Periods never go back, even if clocks do.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Periods = Periods { day: 40, month: 2 };

    fn tokens(tokens: u64) -> Spending {
        Spending { tokens, cost: u128::from(tokens) * 10 }
    }

    fn scope(name: &str, day: Option<u64>, month_cost: Option<u128>) -> BudgetScope {
        let day = Budget { tokens: day, cost: None };
        let month = Budget { tokens: None, cost: month_cost };
        BudgetScope { name: name.into(), budgets: Budgets { day, month } }
    }

    #[test]
    fn running_ended_and_written_requests_together_stay_within_all_budgets() {
        let mut accounts = Accounts::default();
        let scopes = [scope("key", Some(100), None), scope("project", None, Some(1500))];
        let first = accounts.reserve(&scopes, tokens(60), NOW).expect("within");
        let refused = accounts.reserve(&scopes, tokens(41), NOW).expect_err("the key's day");
        let expected = BudgetRefusal {
            scope: 0,
            is_daily: true,
            is_money: false,
            limit: 100,
            spent: 0,
            reserved: 60,
            needed: 41,
        };
        assert_eq!(refused, expected);
        let second = accounts.reserve(&scopes, tokens(40), NOW).expect("exactly within");
        accounts.settle(first, tokens(10), NOW);
        accounts.settle(second, tokens(40), NOW);
        assert!(accounts.reserve(&scopes, tokens(51), NOW).is_err());
        // The ledger has the first one and what another server wrote.
        accounts.wrote(&["key", "project"], tokens(10), NOW);
        let ledger = |n: u64| {
            BTreeMap::from([
                ("key".into(), (tokens(n), tokens(n))),
                ("project".into(), (tokens(n), tokens(n))),
            ])
        };
        accounts.read(ledger(15), NOW);
        assert!(accounts.reserve(&scopes, tokens(46), NOW).is_err(), "15 written and 40 not");
        let third = accounts.reserve(&scopes, tokens(45), NOW).expect("exactly within");
        accounts.settle(third, tokens(0), NOW);
        // The next day begins with nothing, the month goes on.
        let next = Periods { day: 41, ..NOW };
        let all = accounts.reserve(&scopes, tokens(95), next).expect("within");
        accounts.settle(all, tokens(95), next);
        let refused =
            accounts.reserve(&[scopes[1].clone()], tokens(1), next).expect_err("the project's month");
        let expected = BudgetRefusal {
            scope: 0,
            is_daily: false,
            is_money: true,
            limit: 1500,
            spent: 1500,
            reserved: 0,
            needed: 10,
        };
        assert_eq!(refused, expected);
        // Yesterday's entries that are written today do not count for today.
        accounts.wrote(&["key", "project"], tokens(40), NOW);
        assert!(accounts.reserve(&scopes[..1], tokens(6), next).is_err());
        assert!(accounts.reserve(&scopes[..1], tokens(5), next).is_ok());
    }

    #[test]
    fn what_others_have_spent_today_counts_for_the_month_too() {
        let mut accounts = Accounts::default();
        let scopes = [scope("key", Some(100), Some(1500))];
        accounts.read(BTreeMap::from([("key".into(), (tokens(10), tokens(60)))]), NOW);
        let first = accounts.reserve(&scopes, tokens(20), NOW).expect("within");
        accounts.settle(first, tokens(20), NOW);
        accounts.wrote(&["key"], tokens(20), NOW);
        // 20 of this server and 30 of another one, besides the 10 that were known.
        accounts.read_day([("key".into(), tokens(60))], NOW);
        let refused = accounts.reserve(&scopes, tokens(41), NOW).expect_err("the day or the month");
        assert_eq!((refused.is_daily, refused.is_money), (true, false));
        let of_month = [scope("key", None, Some(1100))];
        for _ in 0..2 {
            assert!(accounts.reserve(&of_month, tokens(0), NOW).is_ok(), "110 of the month's 110");
            assert!(accounts.reserve(&of_month, tokens(1), NOW).is_err());
            accounts.read_day([("key".into(), tokens(60))], NOW);
        }
    }

    #[test]
    fn random_schedules_never_exceed_a_budget_and_never_lose_any_of_it() {
        let mut random = 7_u64;
        let mut draw = move |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let scopes = [scope("key", Some(1000), None)];
        for _ in 0..50 {
            let mut accounts = Accounts::default();
            // What really happened: used and running at most, entries that are not written, the ledger.
            let (mut running, mut unwritten, mut ledger) = (Vec::new(), Vec::new(), 0);
            for _ in 0..2000 {
                let reserved =
                    |running: &[(BudgetReservation, u64)]| running.iter().map(|(_, n)| n).sum::<u64>();
                let ended = |unwritten: &[u64]| unwritten.iter().sum::<u64>();
                match draw(4) {
                    0 => {
                        let most = draw(200);
                        let room = 1000 - ledger - ended(&unwritten) - reserved(&running);
                        match accounts.reserve(&scopes, tokens(most), NOW) {
                            Ok(reservation) => {
                                assert!(most <= room);
                                running.push((reservation, most));
                            }
                            Err(_) => assert!(most > room),
                        }
                    }
                    1 if !running.is_empty() => {
                        let (reservation, most) = running.swap_remove(draw(running.len() as u64) as usize);
                        let used = draw(most / 8 + 1);
                        accounts.settle(reservation, tokens(used), NOW);
                        unwritten.push(used);
                    }
                    2 if !unwritten.is_empty() => {
                        let used = unwritten.remove(0);
                        ledger += used;
                        accounts.wrote(&["key"], tokens(used), NOW);
                    }
                    _ => {
                        accounts.read(BTreeMap::from([("key".into(), (tokens(ledger), tokens(ledger)))]), NOW)
                    }
                }
            }
        }
    }
}
