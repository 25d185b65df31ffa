//! How much may be used in a minute, at a time, in a day and in a month, by keys and by whatever else a limit
//! belongs to. Does not know keys, clocks or HTTP.
//!
//! All scopes of a request are checked and charged in one call, so that no other request comes between. A
//! request is charged with the most that it can use; what it did not use is given back when it ends, to the
//! time at which it was charged. [`shared`] makes limits hold over several gateways.

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
