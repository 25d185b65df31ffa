//! Amounts of work that are smaller in the ordinary run than in `cargo xtask test --nightly`.

/// The variable that `cargo xtask test --nightly` sets.
const NIGHTLY: &str = "THRONG_NIGHTLY";

/// Returns `ordinary`, or `nightly` in the nightly run.
pub fn amount<T>(ordinary: T, nightly: T) -> T {
    if std::env::var_os(NIGHTLY).is_some() { nightly } else { ordinary }
}
