//! Amounts of work that are smaller in the ordinary run than in `cargo xtask test --nightly`.

/// The variable that `cargo xtask test --nightly` sets.
const NIGHTLY: &str = "THRONG_NIGHTLY";

/// Number in a variable of the environment, which repeats a failed case or requests more work.
///
/// # Panics
/// When the variable has another value.
pub fn requested(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Returns `ordinary`, or `nightly` in the nightly run.
pub fn amount<T>(ordinary: T, nightly: T) -> T {
    if std::env::var_os(NIGHTLY).is_some() { nightly } else { ordinary }
}
