//! Tests over a real driver: Mesa's lavapipe where there is no GPU.

mod backend_suite;
mod failures;
mod golden;
mod harness;
mod invisible;
mod limits;
mod mutants;
mod sampling;
mod split;
