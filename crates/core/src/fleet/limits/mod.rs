//! Limits by the minute, on requests at a time, and budgets by day and month, of keys and other scopes.
//! Does not know keys, clocks or HTTP.
//!
//! All scopes of a request are checked and charged in one call, so that no other request intervenes. A
//! request is charged with the most that it can use; the unused part is returned when it ends, to the time at
//! which it was charged. [`shared`] makes limits hold over several gateways.

mod budget;
mod limiter;
#[cfg(test)]
mod schedules;
pub mod shared;
mod state;
mod window;

pub use budget::{
    Accounts, Budget, BudgetRefusal, BudgetReservation, BudgetScope, Budgets, Periods, Spending,
};
pub use limiter::{LimitKind, LimitRefusal, Limiter, Limits, Remaining, Reservation, Scope, Status};
pub use state::{Denied, LimitState};
