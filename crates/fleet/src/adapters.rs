//! The adapters of a model: their names and files, which ones are in memory, and leases on them. Does not
//! know weights.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::fleet::{AdapterNames, NameRefusal};
use throng_core::request::Adapter;

/// Maximum number of adapter names of a model, loaded or not.
const MAX_NAMES: usize = 1024;

/// Loads adapters over a model. Implemented by the owner of the weights.
pub trait AdapterLoader: Debug + Send + Sync {
    /// Loads the adapter in a folder. Blocks while it reads the files.
    ///
    /// # Errors
    /// When it is broken or does not fit the model, and when there is no room beside the others.
    fn load(&self, path: &str) -> Result<LoadedAdapter, AdapterFault>;

    /// Notes names and folders of all adapters after a client has loaded or unloaded one, for a model that is
    /// loaded again later.
    fn note_changed(&self, _adapters: Vec<(String, String)>) {}
}

/// An adapter in memory. Its memory is freed after the last clone has been dropped.
#[derive(Debug, Clone)]
pub struct LoadedAdapter {
    /// Number of the adapter in the executors, which is never reused, and its digest.
    pub adapter: Adapter,
    /// Frees the adapter's memory when the last clone is dropped.
    pub held: Arc<dyn Any + Send + Sync>,
}

/// Reason why an adapter cannot be loaded. The texts are for the operator and the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterFault {
    /// The adapter is broken or does not fit.
    Invalid(String),
    /// Memory is full: the adapter can be loaded once others have been evicted.
    Full(String),
}

/// Reason why a client's request to load or unload an adapter fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterError {
    /// The operator does not allow runtime updates.
    UpdatesDisabled,
    /// Another adapter has this name.
    NameTaken,
    /// The model already has this number of adapters, the maximum.
    TooMany(usize),
    /// No adapter has this name.
    NotFound,
    /// The adapter cannot be loaded.
    Fault(AdapterFault),
}

impl From<NameRefusal> for AdapterError {
    fn from(refusal: NameRefusal) -> Self {
        match refusal {
            NameRefusal::Taken => Self::NameTaken,
            NameRefusal::TooMany(most) => Self::TooMany(most),
        }
    }
}

/// An adapter with its name.
#[derive(Debug, Clone)]
pub struct AdapterModule {
    /// Name of the adapter in requests.
    pub name: String,
    /// Folder of the adapter.
    pub path: String,
    /// The adapter, if it is in memory already.
    pub loaded: Option<LoadedAdapter>,
}

/// The operator's settings for a model's adapters.
#[derive(Debug, Clone)]
pub struct AdapterSettings {
    /// Loader of adapters.
    pub loader: Arc<dyn AdapterLoader>,
    /// Adapters configured at the start.
    pub modules: Vec<AdapterModule>,
    /// Whether clients may load and unload adapters.
    pub allow_runtime_updates: bool,
}

/// The adapters of a model.
#[derive(Debug, Default)]
pub struct Adapters {
    loader: Option<Arc<dyn AdapterLoader>>,
    allows_updates: bool,
    names: Mutex<Names>,
    /// Lock held while an adapter is loaded, so that only one is loaded at a time.
    loading: Mutex<()>,
}

#[derive(Debug)]
struct Names {
    by_name: BTreeMap<String, Entry>,
    /// Registered names, and the choice of the adapter to evict.
    decisions: AdapterNames,
}

impl Default for Names {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), decisions: AdapterNames::new(MAX_NAMES) }
    }
}

#[derive(Debug)]
struct Entry {
    path: String,
    loaded: Option<LoadedAdapter>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Adapters {
    /// The configured adapters; without settings there are none and none can be loaded.
    pub fn new(settings: Option<&AdapterSettings>) -> Self {
        let Some(AdapterSettings { loader, modules, allow_runtime_updates }) = settings else {
            return Self::default();
        };
        let mut names = Names::default();
        for AdapterModule { name, path, loaded } in modules.iter().cloned() {
            names.decisions.add_first(&name);
            names.by_name.insert(name, Entry { path, loaded });
        }
        Self {
            loader: Some(loader.clone()),
            allows_updates: *allow_runtime_updates,
            names: Mutex::new(names),
            loading: Mutex::default(),
        }
    }

    /// Whether an adapter has this name.
    pub fn has(&self, name: &str) -> bool {
        lock(&self.names).by_name.contains_key(name)
    }

    /// Names and folders of all adapters, ordered by name.
    pub fn list(&self) -> Vec<(String, String)> {
        let names = lock(&self.names);
        names.by_name.iter().map(|(name, entry)| (name.clone(), entry.path.clone())).collect()
    }

    /// The adapter of this name for one request, in memory as long as the request holds the lease. An evicted
    /// adapter is loaded again. `None`: no adapter has this name.
    ///
    /// # Errors
    /// When all loaded adapters are in use and there is no room for another one, or when the adapter's
    /// folder has become unusable.
    pub fn lease(&self, name: &str) -> Result<Option<LoadedAdapter>, AdapterFault> {
        if let Some(loaded) = self.in_memory(name) {
            return Ok(Some(loaded));
        }
        let _turn = lock(&self.loading);
        // Another thread may have loaded it meanwhile.
        if let Some(loaded) = self.in_memory(name) {
            return Ok(Some(loaded));
        }
        let Some(path) = lock(&self.names).by_name.get(name).map(|entry| entry.path.clone()) else {
            return Ok(None);
        };
        let loaded = self.load_with_room(&path)?;
        if let Some(entry) = lock(&self.names).by_name.get_mut(name).filter(|entry| entry.path == path) {
            entry.loaded = Some(loaded.clone());
        }
        Ok(Some(loaded))
    }

    /// Loads an adapter and registers its name. `in_place` replaces the adapter of the same name; running
    /// requests keep the old one.
    ///
    /// # Errors
    /// When the operator does not allow it, the name is taken, the folder is broken or does not fit the
    /// model, or there is no room for the adapter.
    pub fn load(&self, name: &str, path: &str, in_place: bool) -> Result<(), AdapterError> {
        self.check_updates()?;
        let _turn = lock(&self.loading);
        lock(&self.names).decisions.check(name, in_place)?;
        let loaded = self.load_with_room(path).map_err(AdapterError::Fault)?;
        let mut names = lock(&self.names);
        names.decisions.use_now(name);
        let entry = Entry { path: path.to_owned(), loaded: Some(loaded) };
        let replaced = names.by_name.insert(name.to_owned(), entry);
        drop(names);
        // Dropped outside the lock: this may free a large adapter.
        drop(replaced);
        self.note_changed();
        Ok(())
    }

    /// Removes the name. Running requests keep the adapter.
    ///
    /// # Errors
    /// When the operator does not allow it, or no adapter has this name.
    pub fn unload(&self, name: &str) -> Result<(), AdapterError> {
        self.check_updates()?;
        let mut names = lock(&self.names);
        names.decisions.remove(name);
        let removed = names.by_name.remove(name);
        drop(names);
        removed.map(drop).ok_or(AdapterError::NotFound)?;
        self.note_changed();
        Ok(())
    }

    fn note_changed(&self) {
        if let Some(loader) = &self.loader {
            loader.note_changed(self.list());
        }
    }

    fn check_updates(&self) -> Result<(), AdapterError> {
        if self.allows_updates { Ok(()) } else { Err(AdapterError::UpdatesDisabled) }
    }

    fn in_memory(&self, name: &str) -> Option<LoadedAdapter> {
        let mut names = lock(&self.names);
        let loaded = names.by_name.get(name)?.loaded.clone();
        names.decisions.use_now(name);
        loaded
    }

    /// Loads an adapter. If there is no room, evicts unused adapters, the least recently used first.
    fn load_with_room(&self, path: &str) -> Result<LoadedAdapter, AdapterFault> {
        let Some(loader) = &self.loader else {
            return Err(AdapterFault::Invalid("This model takes no adapters.".to_owned()));
        };
        loop {
            match loader.load(path) {
                Err(AdapterFault::Full(_)) if self.evict_one() => {}
                result => return result,
            }
        }
    }

    fn evict_one(&self) -> bool {
        let mut names = lock(&self.names);
        // Clones are made under the lock, so an adapter with a single owner cannot get another one here.
        let is_unused =
            |entry: &Entry| entry.loaded.as_ref().is_some_and(|l| Arc::strong_count(&l.held) == 1);
        let Names { by_name, decisions } = &mut *names;
        let oldest = decisions.oldest(|name| by_name.get(name).is_some_and(is_unused));
        let evicted = oldest.and_then(|name| by_name.get_mut(name)?.loaded.take());
        drop(names);
        evicted.map(drop).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use throng_core::request::AdapterId;

    use super::*;

    /// A loader with room for two adapters.
    #[derive(Debug, Default)]
    struct TwoPlaces {
        next: AtomicU32,
        held: Arc<()>,
    }

    impl AdapterLoader for TwoPlaces {
        fn load(&self, path: &str) -> Result<LoadedAdapter, AdapterFault> {
            if path == "broken" {
                return Err(AdapterFault::Invalid("tensor x is missing".to_owned()));
            }
            if Arc::strong_count(&self.held) > 2 {
                return Err(AdapterFault::Full("2 are loaded".to_owned()));
            }
            let adapter = Adapter::numbered(AdapterId(self.next.fetch_add(1, Ordering::Relaxed)));
            Ok(LoadedAdapter { adapter, held: Arc::new(self.held.clone()) })
        }
    }

    fn adapters(names: &[&str]) -> (Arc<TwoPlaces>, Adapters) {
        let loader = Arc::new(TwoPlaces::default());
        let module = |name: &&str| AdapterModule { name: (*name).into(), path: (*name).into(), loaded: None };
        let modules = names.iter().map(module).collect();
        let settings = AdapterSettings { loader: loader.clone(), modules, allow_runtime_updates: true };
        (loader, Adapters::new(Some(&settings)))
    }

    fn id(lease: &Option<LoadedAdapter>) -> Option<u32> {
        lease.as_ref().map(|loaded| loaded.adapter.id.0)
    }

    #[test]
    fn the_one_unused_for_longest_makes_room() {
        let (_, adapters) = adapters(&["a", "b", "c"]);
        let of = |name| id(&adapters.lease(name).expect("room"));
        assert_eq!((of("a"), of("b"), of("a"), of("x")), (Some(0), Some(1), Some(0), None));
        // Takes b's place; b then returns with a new number, in a's place.
        assert_eq!(
            (of("c"), of("a"), of("c"), of("b"), of("c")),
            (Some(2), Some(0), Some(2), Some(3), Some(2))
        );
    }

    #[test]
    fn an_adapter_in_use_is_neither_evicted_nor_freed_by_unloading() {
        let (loader, adapters) = adapters(&["a", "b", "c"]);
        let (a, b) = (adapters.lease("a").expect("room"), adapters.lease("b").expect("room"));
        let refused = adapters.lease("c").expect_err("both are in use");
        assert!(matches!(refused, AdapterFault::Full(_)), "{refused:?}");
        adapters.unload("a").expect("it is there");
        assert!(!adapters.has("a") && adapters.lease("a").expect("no fault").is_none());
        assert_eq!(Arc::strong_count(&loader.held), 3);
        assert!(adapters.lease("c").is_err(), "a still takes its place");
        drop(a);
        assert_eq!(Arc::strong_count(&loader.held), 2);
        assert_eq!(id(&adapters.lease("c").expect("room")), Some(2));
        // In place: running requests keep the old one.
        assert_eq!(adapters.load("b", "b", false), Err(AdapterError::NameTaken));
        assert!(adapters.load("b", "elsewhere", true).is_ok(), "c makes room");
        assert_eq!((id(&b), id(&adapters.lease("b").expect("room"))), (Some(1), Some(3)));
    }

    #[test]
    fn faults_are_told_apart() {
        let (_, adapters) = adapters(&["bad"]);
        let broken = AdapterFault::Invalid("tensor x is missing".to_owned());
        assert_eq!(adapters.load("new", "broken", false), Err(AdapterError::Fault(broken)));
        assert!(!adapters.has("new"));
        assert_eq!(adapters.unload("new"), Err(AdapterError::NotFound));
        assert_eq!(Adapters::default().load("a", "a", false), Err(AdapterError::UpdatesDisabled));
    }
}
