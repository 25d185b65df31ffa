//! Feeds arbitrary bytes to the check of the same name.
#![no_main]

#[path = "../checks/image.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
