//! The folders with the targets' inputs. Does not know what is checked.

use std::path::{Path, PathBuf};

/// The folder of a target's inputs.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a target's check over all its inputs, of which there are at least `n_least`.
///
/// # Panics
/// When the check panics, there are fewer inputs, or one cannot be read.
pub fn replay(target: &str, n_least: usize, check: fn(&[u8])) {
    let mut n_inputs = 0;
    for entry in std::fs::read_dir(folder(target)).expect("the target has a corpus") {
        let path = entry.expect("the folder can be listed").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("the input can be read"));
        n_inputs += 1;
    }
    assert!(n_inputs >= n_least, "{n_inputs} inputs of {target}");
}
