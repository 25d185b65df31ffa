//! Tenants share no prefix in any tier: a request finds only blocks and states that requests of its own
//! tenant and salt have computed, in memory, on disk and in another engine. A tenant that is not in the names
//! is found.

use std::collections::HashSet;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{Request, RequestId, SamplingParams, TenantId, TokenId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::nightly::{amount, requested};
use throng_testkit::paper_executor::PaperExecutor;

use crate::fuzz::store::Store;

/// Numbers of blocks that requests found.
#[derive(Debug, Default)]
struct Found {
    n_own: usize,
    n_foreign: usize,
    n_from_tiers: usize,
}

/// The beginnings that a tenant has computed with a salt.
type Known = HashSet<(TenantId, Option<Arc<str>>, Vec<TokenId>)>;

struct World {
    rng: Rng,
    scheduler: Scheduler,
    executor: PaperExecutor,
    store: Store,
    now: Timestamp,
    known: Known,
    found: Found,
}

impl World {
    fn new(mut rng: Rng, has_states: bool) -> Self {
        let capacity = ExecutorCapacity {
            n_blocks: 40,
            max_batch_tokens: 512,
            max_batch_sequences: 4,
            max_sequence_tokens: 400,
            vocabulary_size: 50,
            n_state_slots: if has_states { 8 } else { 0 },
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity);
        let store = Store::new(&mut rng, has_states);
        store.attach(&mut scheduler);
        let executor = PaperExecutor::new(capacity);
        let (now, known, found) = Default::default();
        Self { rng, scheduler, executor, store, now, known, found }
    }

    /// Runs a request of one of two tenants. With the planted bug, names do not contain the tenant.
    fn request(&mut self, id: u64, is_bug_planted: bool) {
        let rng = &mut self.rng;
        let (family, n_blocks) = (rng.u32(..10), rng.usize(2..16));
        let n_tokens = n_blocks * BLOCK_TOKENS + rng.usize(1..BLOCK_TOKENS);
        let prompt: Vec<_> = (0..n_tokens as u32).map(|i| (i * 7 + family * 11) % 50).collect();
        let tenant = TenantId(["a", "b"][rng.usize(..2)].into());
        let cache_salt: Option<Arc<str>> = [None, None, Some("a".into())][rng.usize(..3)].clone();
        let sampling = SamplingParams { max_tokens: 1, temperature: 0.0, ..SamplingParams::default() };
        let plain = Request::plain(RequestId(id), prompt.clone(), sampling);
        let mut request = Request { tenant: tenant.clone(), cache_salt: cache_salt.clone(), ..plain };
        if is_bug_planted {
            request.tenant = TenantId::anonymous();
        }
        request.holder = self.store.holder(rng, &request);
        if rng.u32(..4) == 0 {
            self.store.ask_for(&request, &mut self.scheduler, self.now);
        }
        self.scheduler.submit(request, self.now).expect("it can run");
        let n_loaded = self.store.n_loaded + self.store.n_pulled;
        let n_found = self.run() / BLOCK_TOKENS;
        let of = |n: usize| (tenant.clone(), cache_salt.clone(), prompt[..n * BLOCK_TOKENS].to_vec());
        let n_own = (1..=n_found).take_while(|&n| self.known.contains(&of(n))).count();
        self.found.n_own += n_own;
        self.found.n_foreign += n_found - n_own;
        self.found.n_from_tiers += self.store.n_loaded + self.store.n_pulled - n_loaded;
        self.known.extend((1..=n_blocks).map(of));
    }

    /// Runs until the request has ended, and returns the number of tokens that it found.
    fn run(&mut self) -> usize {
        let mut n_found = 0;
        while !self.scheduler.is_idle() {
            let mut note = |event: Event<'_>| {
                if let Event::PromptDone { cached_tokens, .. } = event {
                    n_found = cached_tokens as usize;
                }
            };
            let step = self.scheduler.plan(self.now, &mut note);
            self.store.act(&mut self.rng, &mut self.scheduler);
            self.now = self.now + Nanos::from_ms(20);
            let Some(step) = step else {
                if self.store.has_work() {
                    self.store.report(&mut self.rng, &mut self.scheduler);
                }
                continue;
            };
            let batch = Arc::clone(step.batch());
            self.store.exchange(&batch, &mut self.executor, None).expect("the store is used as it may be");
            let mut output = StepOutput::default();
            self.executor.execute(&batch, &mut output).expect("it runs");
            self.scheduler.complete(step, &output, self.now, &mut note);
        }
        n_found
    }
}

fn run(seed: u64, n_requests: u64, is_bug_planted: bool) -> Found {
    let (mut rng, mut found) = (Rng::with_seed(seed), Found::default());
    for (world, first) in (0..n_requests).step_by(1_000).enumerate() {
        let mut world = World::new(rng.fork(), world % 2 == 1);
        for id in first..n_requests.min(first + 1_000) {
            world.request(id, is_bug_planted);
        }
        found.n_own += world.found.n_own;
        found.n_foreign += world.found.n_foreign;
        found.n_from_tiers += world.found.n_from_tiers;
    }
    found
}

#[test]
fn requests_find_what_their_own_tenant_has_computed() {
    let seed = requested("THRONG_ISOLATION_SEED").unwrap_or_else(fastrand::get_seed);
    println!("THRONG_ISOLATION_SEED={seed}");
    let found = run(seed, amount(10_000, 100_000), false);
    println!("{found:?}");
    assert_eq!(found.n_foreign, 0, "{found:?}");
    assert!(found.n_own > 2_000 && found.n_from_tiers > 100, "{found:?}");
}

#[test]
fn a_tenant_that_is_not_in_the_names_is_found() {
    let seed = requested("THRONG_ISOLATION_SEED").unwrap_or_else(fastrand::get_seed);
    println!("THRONG_ISOLATION_SEED={seed}");
    let found = run(seed, 1_000, true);
    assert!(found.n_foreign > 0, "{found:?}");
}
