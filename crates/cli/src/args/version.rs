//! What `throng --version` prints after the name: version, commit, target and the instruction set that this
//! machine's kernels use. Does not know the model.

use throng_kernels::Isa;

/// `0.1.0 (1a2b3c4d5e6f, x86_64-unknown-linux-gnu, AVX2)`; without the commit when it was not known at build
/// time.
pub fn version() -> String {
    let built = [env!("THRONG_COMMIT"), env!("THRONG_TARGET"), Isa::best().name()];
    let built: Vec<&str> = built.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{} ({})", env!("CARGO_PKG_VERSION"), built.join(", "))
}
