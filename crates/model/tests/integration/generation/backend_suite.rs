//! The suite of operations on every backend of this crate, and on every ISA of this machine.

use throng_kernels::Isa;
use throng_model::cpu_backend::CpuBackend;
use throng_model::reference_backend::ReferenceBackend;
use throng_testkit::backend_suite;

#[test]
fn the_reference_backend_passes_its_own_suite() {
    backend_suite::check(|_| ReferenceBackend);
}

#[test]
fn the_cpu_backend_passes_on_every_isa() {
    for isa in Isa::available() {
        println!("ISA {}", isa.name());
        backend_suite::check(|n_threads| CpuBackend::with_isa(n_threads, isa));
    }
}
