//! One file a command.

pub mod bench;
pub mod chat;
pub mod generate;
pub mod inspect;

pub mod serve;
