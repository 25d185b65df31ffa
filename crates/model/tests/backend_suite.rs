//! The suite of operations on every backend of this crate.

use throng_model::reference_backend::ReferenceBackend;
use throng_testkit::backend_suite;

#[test]
fn the_reference_backend_passes_its_own_suite() {
    backend_suite::check(|_| ReferenceBackend);
}
