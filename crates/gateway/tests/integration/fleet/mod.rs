//! Replicas, workers and engines of others: where requests go and what happens when one fails.

mod changing_engines;
mod failover;
mod gateways;
mod gray_failures;
mod health;
mod images;
mod loading;
mod lost_workers;
mod regions;
mod roles;
mod upstream_dialects;
mod upstream_engines;
mod upstreams;
mod workers;
