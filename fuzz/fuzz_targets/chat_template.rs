//! Feeds arbitrary bytes to the check of the same name.
#![no_main]

use std::sync::Once;

#[path = "../checks/chat_template.rs"]
mod check;

/// The fuzzer's panic hook aborts at the first panic, including those of libraries that the code under test
/// catches. Without the hook, only panics that leave the check count.
static CAUGHT_PANICS_ARE_FINE: Once = Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    CAUGHT_PANICS_ARE_FINE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    check::check(bytes);
});
