//! The version that `throng --version` prints: version, commit, target and the instruction set of the
//! kernels on this machine.

use throng_kernels::Isa;

/// `0.1.0 (1a2b3c4d5e6f, x86_64-unknown-linux-gnu, AVX2)`; without the commit if the build did not know it.
pub fn version() -> String {
    let built = [env!("THRONG_COMMIT"), env!("THRONG_TARGET"), Isa::best().name()];
    let built: Vec<&str> = built.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{} ({})", env!("CARGO_PKG_VERSION"), built.join(", "))
}
