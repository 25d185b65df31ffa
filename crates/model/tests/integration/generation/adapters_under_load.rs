//! Adapters that come and go while requests run: random requests of random adapters through the real
//! scheduler and the real model, while adapters are loaded, unloaded, evicted and loaded again, and requests
//! are cancelled. Each request that ends has the output that it has alone, its adapter is there as long as it
//! runs, and nothing is left at the end. Planted bugs are found.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration
//! adapters_under_load`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::models;
use fastrand::Rng;
use throng_core::request::{Adapter, AdapterId, Request, RequestId, SamplingParams};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, LoadedAdapter, RandomAdapter};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

const N_NAMES: usize = 6;
const LIMITS: AdapterLimits = AdapterLimits { max_adapters: 4, max_rank: 16, max_bytes: usize::MAX };

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// An adapter is freed while requests use it.
    FreedInUse,
    /// Prefixes are named without their adapter.
    PrefixShared,
    /// Two sequences of a step are computed by each other's adapter.
    Swapped,
    /// Prefixes are named by the adapter's name, which another version has after it is loaded again.
    PrefixByName,
}

/// The prompt and the name of the adapter of a request; `None`: the model as it is.
type Kind = (usize, Option<usize>);

struct World<'a> {
    model: &'a LoadedModel,
    runner: Box<dyn Executor>,
    rng: Rng,
    bug: Option<Bug>,
    /// By name: the version that is loaded now.
    loaded: BTreeMap<usize, LoadedAdapter>,
    versions: [u64; N_NAMES],
    running: BTreeMap<RequestId, (Kind, u64, Option<LoadedAdapter>)>,
    outputs: BTreeMap<RequestId, Vec<u32>>,
    n_ended: usize,
    n_evicted: usize,
    n_full: usize,
    n_unloaded_in_use: usize,
    n_hits: u64,
}

fn prompt(idx: usize) -> Vec<u32> {
    // Two families of prompts that share a prefix of two blocks.
    (0..34 + idx as u32).map(|i| (i * 5 + if i < 32 { idx as u32 % 2 } else { idx as u32 }) % 64).collect()
}

fn request(id: u64, prompt_idx: usize, adapter: Option<Adapter>) -> Request {
    Request {
        adapter,
        ..Request::plain(
            RequestId(id),
            prompt(prompt_idx),
            SamplingParams { seed: 9, max_tokens: 12, ignore_eos: true, ..Default::default() },
        )
    }
}

fn runner(model: &LoadedModel, n_blocks: u32) -> Box<dyn Executor> {
    let limits = RunnerLimits {
        n_blocks,
        kv_dtype: KvDtype::F32,
        max_batch_tokens: 64,
        max_batch_sequences: 8,
        max_sequence_tokens: None,
    };
    model.runner(&RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits }).unwrap()
}

/// Version `version` of the adapter `name`: another version has other numbers.
fn load_version(model: &LoadedModel, name: usize, version: u64) -> Result<LoadedAdapter, bool> {
    let random = RandomAdapter { rank: 2 + name, seed: name as u64 + 100 * version };
    model.load_random_adapter(BackendKind::Cpu, random, LIMITS).map_err(|error| error.is_full())
}

impl World<'_> {
    /// The adapter of a name; another makes room for it if it must and can.
    fn lease(&mut self, name: usize) -> Option<LoadedAdapter> {
        if let Some(loaded) = self.loaded.get(&name) {
            return Some(loaded.clone());
        }
        loop {
            match load_version(self.model, name, self.versions[name]) {
                Ok(loaded) => {
                    self.loaded.insert(name, loaded.clone());
                    return Some(loaded);
                }
                Err(is_full) => assert!(is_full),
            }
            let in_use = |loaded: &LoadedAdapter| Arc::strong_count(&loaded.held) > 1;
            let unused = self.loaded.iter().find(|(_, loaded)| !in_use(loaded)).map(|(name, _)| *name);
            let Some(unused) = unused else {
                self.n_full += 1;
                return None;
            };
            self.loaded.remove(&unused);
            self.n_evicted += 1;
        }
    }

    fn arrive(&mut self, scheduler: &mut Scheduler, id: u64, now: Timestamp) {
        let name = (self.rng.u32(..4) > 0).then(|| self.rng.usize(..N_NAMES));
        let lease = name.and_then(|name| self.lease(name));
        let name = name.filter(|_| lease.is_some());
        let prompt_idx = self.rng.usize(..8);
        let mut request = request(id, prompt_idx, lease.as_ref().map(LoadedAdapter::adapter));
        match (self.bug, name) {
            (Some(Bug::PrefixShared), Some(_)) => {
                request.adapter = Some(Adapter::numbered(AdapterId(u32::MAX)))
            }
            (Some(Bug::PrefixByName), Some(name)) => {
                request.adapter = Some(Adapter::numbered(AdapterId(name as u32)))
            }
            _ => {}
        }
        scheduler.submit(request, now).unwrap();
        let version = name.map_or(0, |name| self.versions[name]);
        let lease = lease.filter(|_| self.bug != Some(Bug::FreedInUse));
        self.running.insert(RequestId(id), ((prompt_idx, name), version, lease));
    }

    /// Unloads an adapter; the next of its name is another version.
    fn unload(&mut self) {
        let name = self.rng.usize(..N_NAMES);
        if let Some(loaded) = self.loaded.remove(&name) {
            self.n_unloaded_in_use += usize::from(Arc::strong_count(&loaded.held) > 1);
            self.versions[name] += 1;
        }
    }

    /// The batch as the executor gets it: with the planted bug, if it is one of the batch.
    fn seen(&self, batch: &ScheduledBatch) -> ScheduledBatch {
        let mut adapters: Vec<Option<AdapterId>> = batch.sequences().iter().map(|s| s.adapter).collect();
        match self.bug {
            Some(Bug::Swapped) if adapters.len() > 1 => adapters.swap(0, 1),
            Some(Bug::PrefixShared | Bug::PrefixByName) => {
                for (adapter, scheduled) in adapters.iter_mut().zip(batch.sequences()) {
                    let running = self.running.get(&scheduled.id.request);
                    *adapter = running.and_then(|(_, _, lease)| Some(lease.as_ref()?.id));
                }
            }
            _ => {}
        }
        let mut seen = ScheduledBatch::default();
        for (scheduled, adapter) in batch.sequences().iter().zip(adapters) {
            let mut scheduled = scheduled.clone();
            scheduled.adapter = adapter;
            seen.push_drafted(batch, &scheduled, &[]);
        }
        seen
    }

    fn run(
        &mut self,
        n_requests: u64,
        mut expected: impl FnMut(Kind, u64) -> Vec<u32>,
    ) -> Result<(), String> {
        let capacity = ExecutorCapacity { n_blocks: 9, ..self.runner.capacity() };
        let config = SchedulerConfig { max_batch_sequences: 8, max_batch_tokens: 64, ..Default::default() };
        let mut scheduler = Scheduler::new(config, capacity);
        let (mut now, mut next, mut output) = (Timestamp::default(), 0, StepOutput::default());
        loop {
            // Few at a time leave adapters unused, which others may evict; many at a time use them all.
            let most = if next / 16 % 2 == 0 { 3 } else { 12 };
            while next < n_requests && self.running.len() < most && self.rng.u32(..3) > 0 {
                self.arrive(&mut scheduler, next, now);
                next += 1;
            }
            if self.rng.u32(..4) == 0 {
                self.unload();
            }
            let mut events = Vec::new();
            let mut emit = |event: Event<'_>| match event {
                Event::Token { sequence, token } => {
                    events.push((sequence.request, Ok(Some(token.chosen.token))))
                }
                Event::Finished { sequence, .. } => events.push((sequence.request, Ok(None))),
                Event::Failed { request, failure } => events.push((request, Err(failure.to_string()))),
                _ => {}
            };
            if self.rng.u32(..12) == 0
                && let Some(&request) = self.running.keys().next()
            {
                scheduler.abort(request, now, &mut emit);
                self.running.remove(&request);
                self.outputs.remove(&request);
            }
            let Some(step) = scheduler.plan(now, &mut emit) else {
                if next < n_requests {
                    continue;
                }
                break;
            };
            let seen = self.seen(step.batch());
            self.runner.execute(&seen, &mut output).map_err(|error: ExecutorError| error.to_string())?;
            now = now + Nanos(1_000_000);
            scheduler.complete(step, &output, now, &mut emit);
            for (request, event) in events {
                let Some((kind, version, _)) = self.running.get(&request) else { continue };
                match event {
                    Err(failure) => return Err(format!("{request:?} failed: {failure}")),
                    Ok(Some(token)) => self.outputs.entry(request).or_default().push(token),
                    Ok(None) => {
                        let output = self.outputs.remove(&request).unwrap_or_default();
                        if output != expected(*kind, *version) {
                            return Err(format!("{request:?} of {kind:?}, version {version}: {output:?}"));
                        }
                        self.running.remove(&request);
                        self.n_ended += 1;
                    }
                }
            }
        }
        self.n_hits += scheduler.stats().counters.cache_hit_tokens;
        match scheduler.stats().used_blocks {
            0 => Ok(()),
            n => Err(format!("{n} blocks are left")),
        }
    }
}

/// What each request gives alone, in a store of its own.
struct Alone {
    model: LoadedModel,
    outputs: BTreeMap<(Kind, u64), Vec<u32>>,
}

impl Alone {
    fn output(&mut self, kind: Kind, version: u64) -> Vec<u32> {
        let model = &self.model;
        let run = || {
            let adapter = kind.1.map(|name| load_version(model, name, version).unwrap());
            let mut runner = runner(model, 16);
            let mut scheduler = Scheduler::new(SchedulerConfig::default(), runner.capacity());
            let (mut tokens, mut output, now) = (Vec::new(), StepOutput::default(), Timestamp::default());
            scheduler.submit(request(0, kind.0, adapter.as_ref().map(LoadedAdapter::adapter)), now).unwrap();
            let mut emit = |event: Event<'_>| {
                if let Event::Token { token, .. } = event {
                    tokens.push(token.chosen.token);
                }
            };
            while let Some(step) = scheduler.plan(now, &mut emit) {
                runner.execute(step.batch(), &mut output).unwrap();
                scheduler.complete(step, &output, now, &mut emit);
            }
            tokens
        };
        self.outputs.entry((kind, version)).or_insert_with(run).clone()
    }
}

fn tiny_model() -> (tempfile::TempDir, LoadedModel, LoadedModel) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let narrow = models::narrow();
    narrow.write_gguf(Format::Q8_0, &path).unwrap();
    let open =
        || load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap();
    let models = (open(), open());
    (folder, models.0, models.1)
}

fn world(model: &LoadedModel, seed: u64, bug: Option<Bug>) -> World<'_> {
    World {
        model,
        runner: runner(model, 16),
        rng: Rng::with_seed(seed),
        bug,
        loaded: BTreeMap::new(),
        versions: [0; N_NAMES],
        running: BTreeMap::new(),
        outputs: BTreeMap::new(),
        n_ended: 0,
        n_evicted: 0,
        n_full: 0,
        n_unloaded_in_use: 0,
        n_hits: 0,
    }
}

#[test]
fn adapters_come_and_go_and_no_output_depends_on_it() {
    let (_folder, model, other) = tiny_model();
    let mut alone = Alone { model: other, outputs: BTreeMap::new() };
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut total = [0; 5];
    for seed in only.map_or(0..6, |seed| seed..seed + 1) {
        let mut world = world(&model, seed, None);
        let ended = world.run(150, |kind, version| alone.output(kind, version));
        assert_eq!(ended, Ok(()), "THRONG_SEED={seed}");
        let World { n_ended, n_evicted, n_full, n_unloaded_in_use, n_hits, .. } = world;
        println!(
            "seed {seed}: {n_ended} ended, {n_evicted} evicted, {n_full} found no room, {n_unloaded_in_use} unloaded in use, \
             {n_hits} tokens found in the cache"
        );
        let seen = [n_ended, n_evicted, n_full, n_unloaded_in_use, n_hits as usize];
        total.iter_mut().zip(seen).for_each(|(total, seen)| *total += seen);
        // Nothing is held any more: four adapters fit again.
        assert!(world.running.is_empty());
        world.loaded.clear();
        let four: Vec<_> = (0..4).map(|name| load_version(&model, name, 0)).collect();
        assert!(four.iter().all(Result::is_ok), "THRONG_SEED={seed}: an adapter is left");
    }
    assert!(only.is_some() || total.iter().all(|n| *n > 20), "it saw too little: {total:?}");
}

/// Every planted bug makes the same run fail. A bug that is not found would show that the test is too weak.
#[test]
fn planted_bugs_are_caught() {
    let (_folder, model, other) = tiny_model();
    let mut alone = Alone { model: other, outputs: BTreeMap::new() };
    for bug in [Bug::FreedInUse, Bug::PrefixShared, Bug::Swapped, Bug::PrefixByName] {
        let mut fails = |seed| {
            let run = || world(&model, seed, Some(bug)).run(150, |kind, version| alone.output(kind, version));
            !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(())))
        };
        assert!((0..6).any(&mut fails), "{bug:?} is not found");
    }
}
