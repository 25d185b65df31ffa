//! The OpenAI-compatible gateway: one request's way from socket to tokens and back.
#![forbid(unsafe_code)]

mod config;
pub mod openai;

pub use config::{AccessConfig, ApiConfig, GatewayConfig, Secret, ServerConfig};
