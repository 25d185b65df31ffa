//! Decides which of the models on demand are in memory: when one is loaded, and which one makes room for
//! it. Does not load and unload; has no clock.

use std::time::Duration;

/// Time after its last request in which a model is not unloaded: its requests may still be on their way to
/// it.
const GRACE: Duration = Duration::from_secs(1);

/// State of a model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// On disk only.
    Absent,
    /// Being loaded.
    Loading,
    /// In memory; takes requests.
    Loaded,
    /// Draining: takes no new requests, and is unloaded when the running ones have ended.
    Leaving,
}

/// Next step for a request to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The model can be asked.
    Ask,
    /// The model must be loaded.
    Load,
    /// This model must be unloaded first.
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
        });
        self.models.len() - 1
    }

    /// State of a model.
    pub fn standing(&self, model: usize) -> Standing {
        self.models[model].standing
    }

    /// Bytes of models in memory, being loaded or draining.
    pub fn n_bytes(&self) -> u64 {
        let present = self.models.iter().filter(|model| model.standing != Standing::Absent);
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
        if fits || held == 0 {
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
        let loaded = self.models.iter().enumerate().filter(|(_, model)| model.standing == Standing::Loaded);
        let unused = loaded.filter(|(_, model)| now.saturating_sub(model.last_used) >= unused_for(model));
        unused.filter(|(number, _)| is_idle(*number)).min_by_key(|(_, model)| model.last_used).map(|(n, _)| n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_unused_for_longest_makes_room() {
        let mut models = Residency::new([40, 40, 40, 200], 100);
        for (model, at) in [(0, 1), (1, 2)] {
            assert_eq!(models.wanted(model, s(at), |_| true), Step::Load);
            assert_eq!(models.wanted(model, s(at), |_| true), Step::Wait);
            models.loaded(model, Some(45), s(at));
        }
        assert_eq!(models.wanted(0, s(3), |_| true), Step::Ask);
        assert_eq!(models.wanted(2, s(10), |model| model != 1), Step::Unload(0), "1 has requests");
        assert_eq!(models.wanted(2, s(10), |_| true), Step::Wait);
        assert_eq!(models.wanted(0, s(10), |_| true), Step::Wait, "it leaves");
        models.left(0);
        assert_eq!(models.wanted(2, s(11), |_| true), Step::Load);
        models.loaded(2, None, s(11));
        assert_eq!(models.standing(2), Standing::Absent);
        assert_eq!(models.wanted(3, s(12), |_| false), Step::Wait, "nobody can go");
        assert_eq!(models.wanted(3, s(12), |_| true), Step::Unload(1));
        models.left(1);
        assert_eq!(models.wanted(3, s(13), |_| true), Step::Load, "too large, but alone");
    }

    #[test]
    fn idle_models_go_and_used_ones_stay() {
        let mut models = Residency::new([1, 1], u64::MAX);
        for model in [0, 1] {
            assert_eq!(models.wanted(model, s(0), |_| true), Step::Load);
            models.loaded(model, Some(1), s(0));
        }
        assert_eq!(models.idle_for(s(10), s(5), |_| true), None);
        assert_eq!(models.idle_for(s(10), s(12), |model| model == 0), Some(0));
        assert_eq!(models.idle_for(s(10), s(15), |_| true), None, "1 was in use at 12");
        assert!(!models.leave(0) && models.leave(1) && !models.leave(1));
    }

    #[test]
    fn a_request_sets_how_long_its_model_stays() {
        let mut models = Residency::new([1, 1], u64::MAX);
        for model in [0, 1] {
            assert_eq!(models.wanted(model, s(0), |_| true), Step::Load);
            models.loaded(model, Some(1), s(0));
        }
        models.keep(0, Duration::MAX);
        models.keep(1, Duration::ZERO);
        assert_eq!(models.idle_for(s(10), s(2), |model| model == 0), None, "1 has requests");
        assert_eq!(models.idle_for(s(10), s(4), |_| true), Some(1));
        assert_eq!(models.idle_for(s(10), s(1000), |_| true), None, "0 stays");
        models.left(1);
        assert_eq!(models.wanted(1, s(1001), |_| true), Step::Load);
        models.loaded(1, Some(1), s(1001));
        assert_eq!(models.idle_for(s(10), s(1005), |_| true), None, "the usual time holds again");
    }

    /// Random requests, ends of loads and unloads: the bound holds unless a larger model is alone, and
    /// every waiting request is served.
    #[test]
    fn random_schedules_keep_the_bound_and_come_to_an_end() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2_000 {
            let sizes: Vec<u64> = (0..random.usize(1..6)).map(|_| random.u64(1..60)).collect();
            let max_bytes = random.u64(1..100);
            let mut models = Residency::new(sizes.clone(), max_bytes);
            let (mut now, mut busy) = (s(0), vec![false; sizes.len()]);
            let mut waiting: Vec<usize> = Vec::new();
            for step in 0..400 {
                now += Duration::from_millis(random.u64(0..2_000));
                if step < 200 && random.bool() {
                    waiting.push(random.usize(..sizes.len()));
                }
                for model in 0..sizes.len() {
                    busy[model] = step < 200 && random.u8(..4) == 0;
                    match models.standing(model) {
                        Standing::Loading if random.bool() => models.loaded(model, Some(sizes[model]), now),
                        Standing::Leaving if random.bool() => models.left(model),
                        _ => {}
                    }
                }
                waiting.retain(|&model| models.wanted(model, now, |n| !busy[n]) != Step::Ask);
                let n_present = (0..sizes.len()).filter(|&n| models.standing(n) != Standing::Absent).count();
                assert!(models.n_bytes() <= max_bytes || n_present == 1, "seed {seed}");
            }
            assert!(waiting.is_empty(), "seed {seed}: {waiting:?}");
        }
    }
}
