//! Feeds arbitrary bytes to the check of the same name.
#![no_main]

use std::sync::Once;

#[path = "../checks/answer.rs"]
mod check;

/// The fuzzer's hook ends the process at the first panic, also at those of the libraries inside that the code
/// under test catches. Without it only what comes out of the check counts.
static CAUGHT_PANICS_ARE_FINE: Once = Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    CAUGHT_PANICS_ARE_FINE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    check::check(bytes);
});
