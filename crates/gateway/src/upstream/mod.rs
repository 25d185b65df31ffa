//! Requests for models of upstream engines, from their bodies to their answers: checks, charges and
//! forwarding. Keys, limits, budgets and the ledger apply as to models of this gateway; `docs/design.md`
//! lists the differences. Does not know connections.

mod active_request;
mod answer;
mod begin;
mod pass_through;
mod setting;
mod whole;

pub(crate) use answer::answer;
pub(crate) use begin::UpstreamJob;
pub(crate) use pass_through::pass_through;
pub(crate) use setting::Setting;
