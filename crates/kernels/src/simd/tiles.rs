//! The configuration of the calling thread's AMX tiles, in a form that compiles on every architecture.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use super::amx;

/// The calling thread's tile configuration. Released (TILERELEASE) when dropped.
#[derive(Default)]
pub(crate) struct TileConfig {
    shape: Cell<Option<(usize, usize)>>,
}

impl TileConfig {
    /// Loads the configuration for `n` rows (tokens or query heads), at most sixteen, and sixteen or eight
    /// column pairs.
    ///
    /// # Safety
    /// The machine must support AMX.
    pub(crate) unsafe fn shape(&self, n_tokens: usize, n_pairs: usize) {
        if self.shape.replace(Some((n_tokens, n_pairs))) != Some((n_tokens, n_pairs)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller guarantees AMX.
            unsafe {
                amx::configure(n_tokens, n_pairs);
            }
        }
    }
}

impl Drop for TileConfig {
    fn drop(&mut self) {
        if self.shape.get().is_some() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a configuration was loaded, so the machine supports AMX.
            unsafe {
                amx::release();
            }
        }
    }
}
