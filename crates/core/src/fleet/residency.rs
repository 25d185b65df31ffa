//! Decides which of the models on demand are in memory: when one is loaded, and which one makes room for
//! it. Does not load and unload; has no clock.

use std::time::Duration;

/// Time after its last request in which a model is not unloaded: its requests may still be on their way to
/// it.
const GRACE: Duration = Duration::from_secs(1);

/// State of a model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The model is on disk only.
    Absent,
    /// The model is being loaded.
    Loading,
    /// The model is in memory and takes requests.
    Loaded,
    /// Draining: takes no new requests, and is unloaded when the running ones have ended.
    Leaving,
}

/// Next step for a request to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The request can be sent to the model.
    Ask,
    /// The model must be loaded.
    Load,
    /// Unloads this model first.
    Unload(usize),
    /// The request must wait until a state has changed.
    Wait,
}

#[derive(Debug)]
struct Model {
    standing: Standing,
    /// Bytes of the model in memory: estimated until it was first loaded.
    n_bytes: u64,
    last_used: Duration,
    /// Time without requests after which the model is unloaded, if a request has set one.
    stay: Option<Duration>,
    /// Whether it leaves only when it is told to, and needs no room.
    is_main: bool,
}

/// The models, by their numbers, and the bound of their bytes in memory.
#[derive(Debug)]
pub struct Residency {
    models: Vec<Model>,
    max_bytes: u64,
}

impl Residency {
    /// Creates the set without a model in memory; `n_bytes` has the estimated bytes of each model.
    pub fn new(n_bytes: impl IntoIterator<Item = u64>, max_bytes: u64) -> Self {
        let mut residency = Self { models: Vec::new(), max_bytes };
        for n_bytes in n_bytes {
            residency.add(n_bytes);
        }
        residency
    }

    /// Adds a model that is on disk only; returns its number.
    pub fn add(&mut self, n_bytes: u64) -> usize {
        self.models.push(Model {
            standing: Standing::Absent,
            n_bytes,
            last_used: Duration::ZERO,
            stay: None,
            is_main: false,
        });
        self.models.len() - 1
    }

    /// Adds a loaded model that leaves only when it is told to, and whose bytes do not count; returns its
    /// number.
    pub fn add_main(&mut self) -> usize {
        let number = self.add(0);
        let model = &mut self.models[number];
        (model.standing, model.is_main) = (Standing::Loaded, true);
        number
    }

    /// Whether [`Self::add_main`] has added a model.
    pub fn is_main(&self, model: usize) -> bool {
        self.models[model].is_main
    }

    /// State of a model.
    pub fn standing(&self, model: usize) -> Standing {
        self.models[model].standing
    }

    /// Bytes of models in memory, being loaded or draining.
    pub fn n_bytes(&self) -> u64 {
        let present = self.models.iter().filter(|model| model.standing != Standing::Absent && !model.is_main);
        present.fold(0, |sum, model| sum.saturating_add(model.n_bytes))
    }

    /// Next step for a request to `model` now. A model that is larger than the bound is loaded if no other
    /// is in memory.
    pub fn wanted(&mut self, model: usize, now: Duration, is_idle: impl Fn(usize) -> bool) -> Step {
        match self.models[model].standing {
            Standing::Loaded => {
                self.models[model].last_used = now;
                return Step::Ask;
            }
            Standing::Loading | Standing::Leaving => return Step::Wait,
            Standing::Absent => {}
        }
        let held = self.n_bytes();
        let fits = held.saturating_add(self.models[model].n_bytes) <= self.max_bytes;
        if fits || held == 0 || self.models[model].is_main {
            self.models[model].standing = Standing::Loading;
            return Step::Load;
        }
        // Whoever waits for room asks again once the one that leaves has gone.
        if self.models.iter().any(|model| model.standing == Standing::Leaving) {
            return Step::Wait;
        }
        match self.oldest_idle(now, |_| GRACE, is_idle) {
            Some(oldest) => {
                self.models[oldest].standing = Standing::Leaving;
                Step::Unload(oldest)
            }
            None => Step::Wait,
        }
    }

    /// Sets how long a model stays in memory without requests; with [`Duration::MAX`] until another model
    /// needs its memory.
    pub fn keep(&mut self, model: usize, stay: Duration) {
        self.models[model].stay = Some(stay);
    }

    /// A model that is to be unloaded now because it had no requests for `idle`, or for the time that
    /// [`Self::keep`] has set.
    pub fn idle_for(
        &mut self,
        idle: Duration,
        now: Duration,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        for (number, model) in self.models.iter_mut().enumerate() {
            if model.standing == Standing::Loaded && !is_idle(number) {
                model.last_used = now;
            }
        }
        let unused_for = |model: &Model| model.stay.unwrap_or(idle).max(GRACE);
        let oldest = self.oldest_idle(now, unused_for, is_idle)?;
        self.models[oldest].standing = Standing::Leaving;
        Some(oldest)
    }

    /// Time at which a loaded model is unloaded if it gets no further request and is idle; `None` if it
    /// stays.
    pub fn leaves_at(&self, model: usize, idle: Duration) -> Option<Duration> {
        let model = &self.models[model];
        let stay = model.stay.unwrap_or(idle).max(GRACE);
        let goes = model.standing == Standing::Loaded && !model.is_main && stay < Duration::MAX;
        goes.then(|| model.last_used.saturating_add(stay))
    }

    /// Begins to unload a model; `false` if it is not loaded.
    pub fn leave(&mut self, model: usize) -> bool {
        let is_loaded = self.models[model].standing == Standing::Loaded;
        if is_loaded {
            self.models[model].standing = Standing::Leaving;
        }
        is_loaded
    }

    /// Notes that a model has been loaded with `n_bytes` bytes, or could not be loaded (`None`).
    pub fn loaded(&mut self, model: usize, n_bytes: Option<u64>, now: Duration) {
        let model = &mut self.models[model];
        model.standing = if n_bytes.is_some() { Standing::Loaded } else { Standing::Absent };
        model.n_bytes = n_bytes.unwrap_or(model.n_bytes);
        model.last_used = now;
    }

    /// Notes that a model has been unloaded.
    pub fn left(&mut self, model: usize) {
        self.models[model].standing = Standing::Absent;
        self.models[model].stay = None;
    }

    fn oldest_idle(
        &self,
        now: Duration,
        unused_for: impl Fn(&Model) -> Duration,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let may_go = |model: &Model| model.standing == Standing::Loaded && !model.is_main;
        let loaded = self.models.iter().enumerate().filter(|(_, model)| may_go(model));
        let unused = loaded.filter(|(_, model)| now.saturating_sub(model.last_used) >= unused_for(model));
        unused.filter(|(number, _)| is_idle(*number)).min_by_key(|(_, model)| model.last_used).map(|(n, _)| n)
    }
}
