//! The suite of operations on every backend of this crate. The ordinary run has the machine's fastest ISA and
//! the slowest one, the nightly run all; the tests of the kernels compare the ISAs with each other in both.

use throng_kernels::Isa;
use throng_model::cpu_backend::CpuBackend;
use throng_model::reference_backend::ReferenceBackend;
use throng_testkit::backend_suite;
use throng_testkit::nightly::amount;

#[test]
fn the_reference_backend_passes_its_own_suite() {
    backend_suite::check(|_| ReferenceBackend);
}

#[test]
fn the_cpu_backend_passes_on_isas() {
    let isas = Isa::available();
    let step = amount(isas.len().saturating_sub(1).max(1), 1);
    for isa in isas.into_iter().step_by(step) {
        println!("ISA {}", isa.name());
        backend_suite::check(|n_threads| CpuBackend::with_isa(n_threads, isa));
    }
}
