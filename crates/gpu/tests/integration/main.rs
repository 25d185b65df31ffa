//! Tests over a real driver: Mesa's lavapipe where there is no GPU.

mod backend_suite;
mod golden;
mod harness;
