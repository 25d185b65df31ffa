//! The commands, one in each file.

pub mod batch;
pub mod bench;
pub mod calibrate;
pub mod chat;
pub mod config;
pub mod devices;
pub mod explain;
pub mod fleet;
pub mod gateway;
pub mod generate;
pub mod handover;
pub mod inspect;
pub mod keys;
pub mod launch;
pub mod models;
pub mod plan;
pub mod pull;
pub mod replay;
pub mod run;
mod running_server;
pub mod serve;
pub mod shell;
pub mod store;
pub mod tools;
pub mod trace;
pub mod usage;
pub mod worker;
