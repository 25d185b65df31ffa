//! Load for a server in real time: requests of a workload over HTTP, as an OpenAI-compatible server takes
//! them, measured by the definitions of `throng_core::timeline::latency`.
//!
//! A module imports only from modules above it: `address`, `text`, `client`, `outcome`, `driver`.

mod address;
mod client;
mod driver;
mod outcome;
mod text;

pub use address::{first_model, server_root};
pub use client::{Api, LoadClient, Target};
pub use driver::{DriveOptions, drive};
pub use outcome::{LoadReport, table};
