//! The tests of `throng-plan` as one program.

mod figures;
mod fleets;
mod machines;
mod models;
mod operators;

/// DEV
fn shared(name: &str) -> Option<std::path::PathBuf> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    path.exists().then_some(path)
}
