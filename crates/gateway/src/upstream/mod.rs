//! Requests for models of upstream engines, from their bodies to their answers: checks, charges and
//! forwarding. Keys, limits, budgets and the ledger hold as for models of this gateway; `docs/design.md`
//! lists what does not. Does not know connections.

mod active_request;
mod forward;
mod setting;
mod stream;

pub(crate) use forward::answer;
pub(crate) use setting::Setting;
