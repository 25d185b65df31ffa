//! The suite that every backend passes.

use throng_testkit::backend_suite;

use crate::harness::{backend, device};

#[test]
fn the_backend_passes_the_suite() {
    let Some(device) = device() else { return };
    println!("{:?}", device.description());
    backend_suite::check(|_| backend(&device));
}
