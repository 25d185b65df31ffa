//! Keys, limits, budgets, priorities, caches, and the routes of operators.

mod adapters;
mod admin;
mod aliases;
mod explain;
mod idempotency;
mod kept_objects;
mod key_limits;
mod keys;
mod ledger;
mod metrics;
mod overload;
mod priorities;
mod response_cache;
mod route_access;
mod routing_config;
mod semantic_cache;
mod service_refusals;
mod shared_limits;
