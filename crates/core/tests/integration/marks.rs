//! Blocks that clients ask to keep: the order of eviction equals that of a plain reference, which finds
//! planted mistakes, and no tenant keeps the blocks of another one out.

use std::collections::BTreeMap;

use fastrand::Rng;
use throng_core::request::{CacheMark, Request, RequestId, SamplingParams, TenantId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, BlockId, StepOutput};
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use throng_core::scheduling::block_pool::{BlockPool, EvictionCounters, EvictionPolicy};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::nightly::requested;
use throng_testkit::paper_executor::PaperExecutor;

/// Mistakes of a pool that the reference must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// A mark is not noted.
    LostMark,
    /// A mark is noted as another tenant's.
    OtherTenant,
    /// A mark lasts longer.
    LateExpiry,
    /// More blocks may be marked.
    LargerShare,
    /// Nothing may be marked.
    NoShare,
    /// A use does not renew a mark.
    NotRenewed,
}

const MISTAKES: [Mistake; 6] = [
    Mistake::LostMark,
    Mistake::OtherTenant,
    Mistake::LateExpiry,
    Mistake::LargerShare,
    Mistake::NoShare,
    Mistake::NotRenewed,
];

/// State of a block with content in the reference.
#[derive(Debug, Clone, Copy)]
struct Known {
    token: u32,
    is_used: bool,
    last_use_s: u64,
    /// Tenant, time to keep, and end of the mark while the block is cached.
    mark: Option<(usize, u64, u64)>,
}

/// A pool beside its reference. All chains have one block.
struct Pair {
    rng: Rng,
    pool: BlockPool,
    mistake: Option<Mistake>,
    max_marked: usize,
    blocks: BTreeMap<u32, Known>,
    now_s: u64,
    n_contents: u32,
    expected: EvictionCounters,
}

const TENANTS: [&str; 3] = ["a", "b", "c"];

fn content(token: u32) -> BlockContent {
    let (parent, tokens) = (BlockHash::from_bytes([0; 32]), [token; BLOCK_TOKENS]);
    BlockContent { hash: parent.child(&tokens), parent, tokens, n_before: 0 }
}

impl Pair {
    fn new(mut rng: Rng, mistake: Option<Mistake>) -> Self {
        let (n_blocks, percent) = (rng.u32(10..40), rng.u32(10..=90));
        let spoiled = match mistake {
            Some(Mistake::LargerShare) => 100,
            Some(Mistake::NoShare) => 0,
            _ => percent,
        };
        let policy = if rng.bool() { EvictionPolicy::Lru } else { EvictionPolicy::Worth };
        Self {
            pool: BlockPool::new(n_blocks).with_eviction(policy, spoiled),
            max_marked: (n_blocks * percent / 100) as usize,
            rng,
            mistake,
            blocks: BTreeMap::new(),
            now_s: 0,
            n_contents: 0,
            expected: EvictionCounters::default(),
        }
    }

    fn run(mut self, n_steps: usize) -> Result<EvictionCounters, String> {
        for _ in 0..n_steps {
            match self.rng.u32(0..10) {
                0 => self.pass_time(),
                1..=4 => self.publish()?,
                5 | 6 => self.release(),
                _ => self.use_again(),
            }
            self.pool.check_invariants()?;
            if self.pool.n_marked() != self.marked().count() {
                return Err(format!("{} marked, not {}", self.pool.n_marked(), self.marked().count()));
            }
            if self.pool.evictions() != self.expected {
                return Err(format!("{:?}, not {:?}", self.pool.evictions(), self.expected));
            }
        }
        Ok(self.expected)
    }

    fn pass_time(&mut self) {
        self.now_s += self.rng.u64(0..200);
        self.pool.set_now(Timestamp::from_ns(self.now_s * 1_000_000_000));
    }

    /// Tenants of the marked blocks that are cached.
    fn marked(&self) -> impl Iterator<Item = usize> {
        let alive = |known: &&Known| !known.is_used && known.mark.is_some_and(|(.., end)| end > self.now_s);
        self.blocks.values().filter(alive).filter_map(|known| Some(known.mark?.0))
    }

    /// Tenants that have the most marked blocks, while there are more than may be.
    fn over_share(&self) -> Vec<usize> {
        let mut counts = [0; TENANTS.len()];
        self.marked().for_each(|tenant| counts[tenant] += 1);
        let most = counts.into_iter().max().unwrap_or(0);
        let is_over = counts.iter().sum::<usize>() > self.max_marked;
        (0..TENANTS.len()).filter(|&tenant| is_over && counts[tenant] == most).collect()
    }

    fn rank(&self, known: &Known, over_share: &[usize]) -> u8 {
        match known.mark.filter(|(.., end)| *end > self.now_s) {
            Some((tenant, ..)) if over_share.contains(&tenant) => 0,
            Some(_) => 2,
            None if over_share.is_empty() || self.now_s - known.last_use_s >= 300 => 0,
            None => 1,
        }
    }

    fn publish(&mut self) -> Result<(), String> {
        let has_free = self.pool.n_free() > 0;
        let over_share = self.over_share();
        let Some(block) = self.pool.allocate() else { return Ok(()) };
        if !has_free {
            let dropped = self.blocks.remove(&block.0).ok_or("an unknown block gave way")?;
            let rest = self.blocks.values().filter(|known| !known.is_used);
            let least = rest.map(|known| self.rank(known, &over_share)).min().unwrap_or(u8::MAX);
            let rank = self.rank(&dropped, &over_share);
            // If several tenants have the most, one of them loses its blocks first.
            if dropped.is_used || (rank > least && !(rank == 2 && over_share.len() > 1)) {
                return Err(format!("rank {rank} gave way before {least}"));
            }
            let counter = match dropped.mark {
                None => &mut self.expected.unmarked,
                Some((.., end)) if end <= self.now_s => &mut self.expected.expired,
                Some((tenant, ..)) if over_share.contains(&tenant) => &mut self.expected.over_share,
                Some(_) => &mut self.expected.marked,
            };
            *counter += 1;
        }
        self.n_contents += 1;
        self.pool.publish(block, &content(self.n_contents));
        let known = Known { token: self.n_contents, is_used: true, last_use_s: self.now_s, mark: None };
        self.blocks.insert(block.0, known);
        Ok(())
    }

    fn release(&mut self) {
        let used: Vec<u32> = self.blocks.iter().filter(|(_, known)| known.is_used).map(|(&b, _)| b).collect();
        let Some(&block) = self.rng.choice(&used) else { return };
        let known = self.blocks.get_mut(&block).expect("just listed");
        if self.rng.bool() {
            let tenant = known.mark.map_or(self.rng.usize(0..TENANTS.len()), |mark| mark.0);
            let keep_s = self.rng.u64(1..2_000);
            let longest = known.mark.map_or(keep_s, |mark| mark.1.max(keep_s));
            known.mark = Some((tenant, longest, 0));
            let is_planted = self.rng.usize(0..4) == 0;
            let mistake = self.mistake.filter(|_| is_planted);
            let tenant = if mistake == Some(Mistake::OtherTenant) { (tenant + 1) % 3 } else { tenant };
            let keep_s = if mistake == Some(Mistake::LateExpiry) { keep_s + 500 } else { keep_s };
            if mistake != Some(Mistake::LostMark) {
                let (tenant, keep) = (TenantId(TENANTS[tenant].into()), Nanos::from_ms(keep_s * 1_000));
                self.pool.mark(&[BlockId(block)], &tenant, keep);
            }
        }
        (known.is_used, known.last_use_s) = (false, self.now_s);
        known.mark = known.mark.map(|(tenant, keep_s, _)| (tenant, keep_s, self.now_s + keep_s));
        self.pool.release(BlockId(block));
    }

    fn use_again(&mut self) {
        let cached: Vec<u32> =
            self.blocks.iter().filter(|(_, known)| !known.is_used).map(|(&b, _)| b).collect();
        let Some(&block) = self.rng.choice(&cached) else { return };
        let known = self.blocks.get_mut(&block).expect("just listed");
        assert_eq!(self.pool.find(&content(known.token)), Some(BlockId(block)));
        known.mark = known.mark.filter(|(.., end)| *end > self.now_s);
        if self.mistake == Some(Mistake::NotRenewed) {
            return;
        }
        self.pool.retain(BlockId(block));
        known.is_used = true;
        if self.rng.bool() {
            self.pool.release(BlockId(block));
            (known.is_used, known.last_use_s) = (false, self.now_s);
            known.mark = known.mark.map(|(tenant, keep_s, _)| (tenant, keep_s, self.now_s + keep_s));
        }
    }
}

fn run_all(mistake: Option<Mistake>, n_worlds: u64) -> Result<EvictionCounters, String> {
    let mut sum = EvictionCounters::default();
    for seed in requested("THRONG_MARKS_SEED").map_or(0..n_worlds, |seed| seed..seed + 1) {
        let counts = Pair::new(Rng::with_seed(seed), mistake).run(2_000);
        let counts = counts.map_err(|problem| format!("{problem}\nrerun: THRONG_MARKS_SEED={seed}"))?;
        sum.unmarked += counts.unmarked;
        sum.expired += counts.expired;
        sum.over_share += counts.over_share;
        sum.marked += counts.marked;
    }
    Ok(sum)
}

#[test]
fn what_gives_way_is_what_the_rules_say() {
    let seen = run_all(None, 200).unwrap_or_else(|problem| panic!("{problem}"));
    let EvictionCounters { unmarked, expired, over_share, marked } = seen;
    let least = [unmarked, expired, over_share, marked].into_iter().min();
    assert!(requested("THRONG_MARKS_SEED").is_some() || least > Some(200), "it saw too little: {seen:?}");
}

#[test]
fn planted_mistakes_are_found() {
    for mistake in MISTAKES {
        let found = run_all(Some(mistake), 20).expect_err("a planted mistake was not found");
        println!("{mistake:?}: {found}");
    }
}

const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 100,
    max_batch_tokens: 512,
    max_batch_sequences: 8,
    max_sequence_tokens: 400,
    vocabulary_size: 1_000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

/// A scheduler with an executor, whose requests run one after the other.
struct Server {
    scheduler: Scheduler,
    executor: PaperExecutor,
    now: Timestamp,
    n_requests: u64,
}

impl Server {
    fn new(max_marked_percent: u32) -> Self {
        let config = SchedulerConfig { max_marked_percent, ..SchedulerConfig::default() };
        let (scheduler, executor) = (Scheduler::new(config, CAPACITY), PaperExecutor::new(CAPACITY));
        Self { scheduler, executor, now: Timestamp::default(), n_requests: 0 }
    }

    /// Runs a request for one token. Returns the number of prompt tokens that were found in the cache.
    fn run(&mut self, tenant: &str, prompt: Vec<u32>, keep_s: Option<u32>) -> u32 {
        self.n_requests += 1;
        let sampling = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
        let request = Request {
            tenant: TenantId(tenant.into()),
            cache_marks: keep_s
                .map(|keep_s| CacheMark { n_tokens: CacheMark::WHOLE, keep_s })
                .into_iter()
                .collect(),
            ..Request::plain(RequestId(self.n_requests), prompt, sampling)
        };
        self.scheduler.submit(request, self.now).expect("there is room");
        let mut n_cached = None;
        while !self.scheduler.is_idle() {
            let mut note = |event: Event<'_>| {
                if let Event::PromptDone { cached_tokens, .. } = event {
                    n_cached = Some(cached_tokens);
                }
            };
            let step = self.scheduler.plan(self.now, &mut note).expect("there is something to compute");
            let mut output = StepOutput::default();
            self.executor.submit(step.batch()).expect("the paper executor runs");
            self.executor.collect(step.batch(), &mut output).expect("the paper executor runs");
            self.now = self.now + Nanos::from_ms(10);
            self.scheduler.complete(step, &output, self.now, &mut note);
        }
        n_cached.expect("the prompt was computed")
    }
}

/// A prompt of ten blocks that begins like no other.
fn prompt(number: u32) -> Vec<u32> {
    (0..161).map(|position| (number * 31 + position * 7) % 1_000).collect()
}

#[test]
fn a_tenant_that_marks_everything_keeps_no_block_of_others_out() {
    let mut server = Server::new(50);
    (0..3).for_each(|i| assert_eq!(server.run("quiet", prompt(i), None), 0));
    (100..300).for_each(|i| assert_eq!(server.run("loud", prompt(i), Some(86_400)), 0));
    let found: Vec<u32> = (0..3).map(|i| server.run("quiet", prompt(i), None)).collect();
    assert_eq!(found, [160; 3], "in the half of the pool that nobody can mark, beside one that runs");
    let stats = server.scheduler.stats();
    assert!(stats.marked_blocks <= 70 && stats.evictions.over_share > 1_000, "{stats:?}");
    server.scheduler.check_invariants().expect("the invariants hold");
}

#[test]
fn two_tenants_that_mark_share_what_may_be_marked() {
    let mut server = Server::new(50);
    (100..150).for_each(|i| assert_eq!(server.run("loud", prompt(i), Some(86_400)), 0));
    (0..2).for_each(|i| assert_eq!(server.run("quiet", prompt(i), Some(300)), 0));
    (150..250).for_each(|i| assert_eq!(server.run("loud", prompt(i), Some(86_400)), 0));
    let found: Vec<u32> = (0..2).map(|i| server.run("quiet", prompt(i), Some(300))).collect();
    assert_eq!(found, [160; 2], "two fifths of what may be marked");
}

#[test]
fn marked_blocks_outlast_unmarked_ones_until_their_time_is_over() {
    for (waits_s, found) in [(200, 160), (400, 0)] {
        let mut server = Server::new(50);
        assert_eq!(server.run("a", prompt(0), Some(300)), 0);
        server.now = server.now + Nanos::from_ms(waits_s * 1_000);
        (100..200).for_each(|i| assert_eq!(server.run("a", prompt(i), None), 0));
        assert_eq!(server.run("a", prompt(0), None), found, "after {waits_s} s");
        assert_eq!(server.scheduler.stats().evictions.expired > 0, found == 0);
    }
}

#[test]
fn a_use_without_a_mark_renews_it() {
    let mut server = Server::new(50);
    assert_eq!(server.run("a", prompt(0), Some(300)), 0);
    for _ in 0..3 {
        server.now = server.now + Nanos::from_ms(250_000);
        (100..130).for_each(|i| assert_eq!(server.run("a", prompt(i), None), 0));
        assert_eq!(server.run("a", prompt(0), None), 160);
    }
}

#[test]
fn marks_refuse_no_request_its_blocks() {
    let mut server = Server::new(100);
    (0..10).for_each(|i| assert_eq!(server.run("a", prompt(i), Some(86_400)), 0));
    assert!(server.scheduler.stats().marked_blocks > 90);
    let longest: Vec<u32> = (0..399).map(|position| (position * 13 + 5) % 1_000).collect();
    assert_eq!(server.run("b", longest, None), 0);
    assert!(server.scheduler.stats().evictions.marked > 10);
}

#[test]
fn without_a_share_marks_have_no_effect() {
    let mut server = Server::new(0);
    assert_eq!(server.run("a", prompt(0), Some(86_400)), 0);
    (100..150).for_each(|i| assert_eq!(server.run("a", prompt(i), None), 0));
    assert_eq!(server.run("a", prompt(0), None), 0);
    assert_eq!(server.scheduler.stats().marked_blocks, 0);
}
