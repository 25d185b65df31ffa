//! Adapters in memory, within bounds. An adapter stays as long as it has a holder; a number is never given
//! twice, so that cached keys and values of one adapter are never taken for another's. Does not know names.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use throng_core::request::{Adapter, AdapterDigest, AdapterId};
use throng_kernels::quant::Format;

use super::{AdapterError, AdapterSource, AdapterWeights, PeftAdapter, RandomAdapter, size_of};
use crate::backend::DeviceMemory;
use crate::config::DecoderConfig;

/// Bounds on the number and size of adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Maximum number of adapters, those included that are held only because requests still use them.
    pub max_adapters: usize,
    /// Maximum rank of an adapter.
    pub max_rank: usize,
    /// Maximum bytes of all adapters together.
    pub max_bytes: usize,
}

impl Default for AdapterLimits {
    /// 32 adapters of up to rank 64 in 2 GiB.
    fn default() -> Self {
        Self { max_adapters: 32, max_rank: 64, max_bytes: 2 << 30 }
    }
}

/// Adapters over one model on one device. Runners look them up; their loaders hold them.
pub struct AdapterStore<B: DeviceMemory> {
    state: RwLock<State<B>>,
}

struct State<B: DeviceMemory> {
    next: u32,
    n_bytes: usize,
    /// Adapters that are being loaded or in memory.
    held: BTreeMap<AdapterId, Entry<B>>,
}

struct Entry<B: DeviceMemory> {
    n_bytes: usize,
    /// `None` until they can be used.
    weights: Option<Arc<AdapterWeights<B>>>,
}

/// An adapter in memory. Its memory is freed when this and all of its clones have been dropped, and the step
/// that runs then, if any, has ended.
#[derive(Debug, Clone)]
pub struct LoadedAdapter {
    /// Number of the adapter.
    pub id: AdapterId,
    /// SHA-256 of its numbers, as they are held.
    pub digest: AdapterDigest,
    /// Largest rank of the adapter's matrices.
    pub rank: usize,
    /// Bytes of memory that the adapter takes.
    pub n_bytes: usize,
    /// Value that frees the adapter's memory when it is dropped.
    pub held: Arc<dyn Any + Send + Sync>,
}

impl LoadedAdapter {
    /// The adapter as requests name it.
    pub fn adapter(&self) -> Adapter {
        Adapter { id: self.id, digest: self.digest }
    }
}

/// Frees an adapter when dropped.
struct Held<B: DeviceMemory> {
    store: Arc<AdapterStore<B>>,
    id: AdapterId,
}

impl<B: DeviceMemory> Drop for Held<B> {
    fn drop(&mut self) {
        let mut state = self.store.write();
        if let Some(Entry { n_bytes, weights }) = state.held.remove(&self.id) {
            state.n_bytes -= n_bytes;
            drop(state);
            // Outside the lock: freeing many matrices takes a while.
            drop(weights);
        }
    }
}

impl<B: DeviceMemory> Default for AdapterStore<B> {
    fn default() -> Self {
        Self { state: RwLock::new(State { next: 0, n_bytes: 0, held: BTreeMap::new() }) }
    }
}

impl<B: DeviceMemory> AdapterStore<B> {
    /// Loads the PEFT adapter in `folder`.
    ///
    /// # Errors
    /// When it is broken, does not fit the model, exceeds the limits, or finds no room beside the others.
    pub fn load(
        self: &Arc<Self>,
        backend: &B,
        config: &DecoderConfig,
        folder: &Path,
        format: Format,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        let source = PeftAdapter::open(folder, config)?;
        let loaded = self.insert(backend, config, &source, format, limits, || source.check_finite());
        source.check_unchanged()?;
        loaded
    }

    /// Creates a random adapter.
    ///
    /// # Errors
    /// When it exceeds the limits or finds no room beside the others.
    pub fn load_random(
        self: &Arc<Self>,
        backend: &B,
        config: &DecoderConfig,
        random: RandomAdapter,
        format: Format,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        self.insert(backend, config, &random, format, limits, || Ok(()))
    }

    /// The adapter of that number, while it is held.
    pub fn get(&self, id: AdapterId) -> Option<Arc<AdapterWeights<B>>> {
        self.read().held.get(&id).and_then(|entry| entry.weights.clone())
    }

    /// Gives the next adapter this number, so that stores of two backends number adapters alike. Ignored if
    /// the number may have been given before.
    pub fn number_next(&self, id: AdapterId) {
        let mut state = self.write();
        state.next = state.next.max(id.0);
    }

    /// Adapters held, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let state = self.read();
        (state.held.len(), state.n_bytes)
    }

    fn insert(
        self: &Arc<Self>,
        backend: &B,
        config: &DecoderConfig,
        source: &dyn AdapterSource,
        format: Format,
        limits: AdapterLimits,
        check: impl FnOnce() -> Result<(), AdapterError>,
    ) -> Result<LoadedAdapter, AdapterError> {
        let (rank, n_bytes) = size_of(source, config, format);
        if rank > limits.max_rank {
            return Err(AdapterError::Rank { rank, max: limits.max_rank });
        }
        let id = self.reserve(n_bytes, limits)?;
        // From here on, dropping `held` gives the reservation back.
        let held = Held { store: Arc::clone(self), id };
        check()?;
        let (weights, digest) = AdapterWeights::new(backend, config, source, format)?;
        if let Some(entry) = self.write().held.get_mut(&id) {
            entry.weights = Some(Arc::new(weights));
        }
        Ok(LoadedAdapter { id, digest, rank, n_bytes, held: Arc::new(held) })
    }

    fn reserve(&self, n_bytes: usize, limits: AdapterLimits) -> Result<AdapterId, AdapterError> {
        let mut state = self.write();
        if state.held.len() >= limits.max_adapters || state.next == u32::MAX {
            return Err(AdapterError::TooMany { n_loaded: state.held.len() });
        }
        let n_free = limits.max_bytes.saturating_sub(state.n_bytes);
        if n_bytes > n_free {
            return Err(AdapterError::NoRoom { n_bytes, n_free, max: limits.max_bytes });
        }
        let id = AdapterId(state.next);
        state.next += 1;
        state.n_bytes += n_bytes;
        state.held.insert(id, Entry { n_bytes, weights: None });
        Ok(id)
    }

    fn read(&self) -> RwLockReadGuard<'_, State<B>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<B>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
