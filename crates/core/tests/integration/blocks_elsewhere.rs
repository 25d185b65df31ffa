//! Blocks that are kept elsewhere and come back: in the tier of the host, by moves within steps, and in
//! another executor, by export and import. Every request gets the output of a reference without a cache.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{
    Adapter, AdapterDigest, AdapterId, Request, RequestId, SamplingParams, TenantId, TokenId,
};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, BlockLocation, BlockMove, ScheduledBatch, StepOutput, Tier,
};
use throng_core::scheduling::block_exchange::BlockExchangeError;
use throng_core::scheduling::block_hash::{BlockContent, BlockHash, BlockTokens};
use throng_core::scheduling::block_pool::DroppedBlock;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig, Step};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::{PaperExecutor, paper_answer};

const HOST_BLOCKS: u32 = 24;

fn capacity(n_blocks: u32) -> ExecutorCapacity {
    ExecutorCapacity {
        n_blocks,
        max_batch_tokens: 64,
        max_batch_sequences: 3,
        max_sequence_tokens: 512,
        vocabulary_size: 100,
        n_state_slots: 0,
        max_steps_in_flight: 1,
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    }
}

/// A prompt of one of a few families, whose members have a common beginning.
fn prompt(rng: &mut Rng) -> Vec<TokenId> {
    let (family, n) = (rng.u32(0..6), rng.u32(2..8) * BLOCK_TOKENS as u32 + rng.u32(1..16));
    (0..n).map(|i| (i * 7 + family * 31) % 100).collect()
}

fn request(id: u64, prompt: Vec<TokenId>) -> Request {
    let sampling = SamplingParams { max_tokens: 5, temperature: 0.0, ..SamplingParams::default() };
    Request::plain(RequestId(id), prompt, sampling)
}

/// The contents of the full blocks of a prompt.
fn contents(prompt: &[TokenId]) -> Vec<BlockContent> {
    let mut parent = BlockHash::root(&TenantId::anonymous(), None, None);
    let of_block = |(n_before, tokens): (usize, &BlockTokens)| {
        let hash = parent.child(tokens);
        let content = BlockContent { hash, parent, tokens: *tokens, n_before: n_before as u32 };
        parent = hash;
        content
    };
    prompt.as_chunks().0.iter().enumerate().map(of_block).collect()
}

/// A scheduler and an executor with what they have generated.
struct Engine {
    scheduler: Scheduler,
    executor: PaperExecutor,
    now: Timestamp,
    outputs: BTreeMap<RequestId, Vec<TokenId>>,
    n_cached: usize,
}

impl Engine {
    fn new(executor: PaperExecutor) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig::default(), executor.capacity());
        let (now, outputs) = (Timestamp::default(), BTreeMap::new());
        Self { scheduler, executor, now, outputs, n_cached: 0 }
    }

    fn plan(&mut self) -> Option<Step> {
        self.scheduler.plan(self.now, &mut |_| {})
    }

    fn run(&mut self, step: Step, batch: &ScheduledBatch) {
        let mut output = StepOutput::default();
        self.executor.execute(batch, &mut output).expect("it has these tiers");
        self.now = self.now + Nanos::from_ms(1);
        let (outputs, n_cached) = (&mut self.outputs, &mut self.n_cached);
        let mut note = |event: Event<'_>| match event {
            Event::Token { sequence, token } => {
                outputs.entry(sequence.request).or_default().push(token.chosen.token);
            }
            Event::PromptDone { cached_tokens, .. } => *n_cached += cached_tokens as usize,
            _ => {}
        };
        self.scheduler.complete(step, &output, self.now, &mut note);
        self.scheduler.pool().check_invariants().expect("the counts agree");
    }

    /// Runs a request alone, and checks its output.
    fn generate(&mut self, request: &Request) {
        self.scheduler.submit(request.clone(), self.now).expect("it can run");
        while let Some(step) = self.plan() {
            let batch = Arc::clone(step.batch());
            self.run(step, &batch);
        }
        assert!(self.is_right(request), "{:?}", request.id);
    }

    /// Whether the output of a request is that of the reference.
    fn is_right(&self, request: &Request) -> bool {
        let answer = paper_answer(request, &self.executor.capacity());
        answer.sequences[0]
            .0
            .iter()
            .map(|token| token.chosen.token)
            .eq(self.outputs[&request.id].iter().copied())
    }
}

/// The host's tier, which keeps what the device drops.
#[derive(Default)]
struct HostTier {
    held: HashMap<BlockHash, (BlockId, BlockContent)>,
    by_slot: BTreeMap<u32, BlockHash>,
    next: u32,
    moves: Vec<BlockMove>,
    n_saved: usize,
    n_restored: usize,
}

impl HostTier {
    fn save(&mut self, dropped: DroppedBlock) {
        let slot = self.next % HOST_BLOCKS;
        self.next += 1;
        let content = dropped.content;
        if let Some(before) = self.by_slot.insert(slot, content.hash) {
            self.held.remove(&before);
        }
        if let Some((slot, _)) = self.held.insert(content.hash, (BlockId(slot), content)) {
            self.by_slot.remove(&slot.0);
        }
        let (from, to) = (BlockLocation::device(dropped.block), BlockLocation::host(BlockId(slot)));
        self.moves.push(BlockMove { from, to });
        self.n_saved += 1;
    }

    /// Brings back what the device lacks of a prompt, up to two blocks.
    fn restore(&mut self, prompt: &[TokenId], scheduler: &mut Scheduler) {
        let mut restored = Vec::new();
        for content in contents(prompt) {
            if scheduler.pool().find(&content).is_some() {
                continue;
            }
            let Some(&(slot, held)) = self.held.get(&content.hash) else { break };
            assert_eq!(held, content);
            if restored.len() == 2 || scheduler.pool().n_available() == 0 {
                break;
            }
            if self.next % HOST_BLOCKS == slot.0 {
                // What gives way must not overwrite what is read afterwards.
                self.next += 1;
            }
            let pool = scheduler.pool_mut();
            let block = pool.allocate().expect("one is available");
            let dropped = pool.take_dropped();
            pool.publish(block, &content);
            restored.push(block);
            dropped.into_iter().for_each(|dropped| self.save(dropped));
            let (from, to) = (BlockLocation::host(slot), BlockLocation::device(block));
            self.moves.push(BlockMove { from, to });
            self.n_restored += 1;
        }
        restored.into_iter().for_each(|block| scheduler.pool_mut().release(block));
    }

    /// The batch of a step with the moves before it.
    fn batch(&mut self, step: &Step) -> ScheduledBatch {
        let mut batch = ScheduledBatch::default();
        self.moves
            .drain(..)
            .chain(step.batch().moves().iter().copied())
            .for_each(|each| batch.push_move(each));
        for scheduled in step.batch().sequences() {
            batch.push_drafted(step.batch(), scheduled, &[]);
        }
        batch
    }
}

/// Requests of few families through a device with too few blocks and a host's tier. Whether all outputs were
/// right.
fn run_with_host_tier(seed: u64, loses_moves: bool) -> bool {
    let mut rng = Rng::with_seed(seed);
    let mut engine = Engine::new(PaperExecutor::new(capacity(24)).with_host_blocks(HOST_BLOCKS));
    engine.scheduler.pool_mut().record_dropped();
    let mut host = HostTier::default();
    let mut is_right = true;
    for round in 0..60 {
        let requests: Vec<Request> =
            (0..rng.u64(1..4)).map(|i| request(round * 10 + i, prompt(&mut rng))).collect();
        for request in &requests {
            host.restore(&request.prompt, &mut engine.scheduler);
            engine.scheduler.submit(request.clone(), engine.now).expect("it can run");
        }
        while let Some(step) = engine.plan() {
            engine.scheduler.pool_mut().take_dropped().into_iter().for_each(|dropped| host.save(dropped));
            if loses_moves {
                host.moves.clear();
            }
            let batch = host.batch(&step);
            engine.run(step, &batch);
        }
        is_right &= requests.iter().all(|request| engine.is_right(request));
    }
    assert!(
        host.n_saved > 50 && host.n_restored > 20,
        "{} saved, {} restored",
        host.n_saved,
        host.n_restored
    );
    is_right
}

#[test]
fn what_the_host_kept_comes_back() {
    for seed in 0..20 {
        assert!(run_with_host_tier(seed, false), "seed {seed}");
        assert!(!run_with_host_tier(seed, true), "seed {seed}: lost moves change tokens");
    }
}

#[test]
fn exported_blocks_spare_another_engine_the_prompt() {
    for seed in 0..20 {
        let mut rng = Rng::with_seed(seed);
        let (mut first, mut second) =
            (Engine::new(PaperExecutor::new(capacity(16))), Engine::new(PaperExecutor::new(capacity(30))));
        let prompt = prompt(&mut rng);
        for (engine, id) in [(&mut first, 1), (&mut second, 2)] {
            // Blocks of the two stand at other places.
            engine.generate(&request(10 + id, vec![id as u32; 40]));
        }
        first.generate(&request(1, prompt.clone()));
        let contents = contents(&prompt);
        let pool = first.scheduler.pool();
        let from: Vec<BlockId> =
            contents.iter().map(|content| pool.find(content).expect("it was computed")).collect();
        let exported = first.executor.export_blocks(&from).expect("no step is in flight");
        let to: Vec<BlockId> =
            contents.iter().map(|_| second.scheduler.pool_mut().allocate().expect("there is room")).collect();
        second.executor.import_blocks(&exported, &to).expect("the same layout");
        for (content, block) in contents.iter().zip(&to) {
            second.scheduler.pool_mut().publish(*block, content);
            second.scheduler.pool_mut().release(*block);
        }
        second.n_cached = 0;
        second.generate(&request(2, prompt.clone()));
        assert_eq!(second.n_cached, (prompt.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS);

        let mut other = exported.clone();
        other.layout.model = "another".into();
        let refused = second.executor.import_blocks(&other, &to);
        assert!(matches!(refused, Err(BlockExchangeError::OtherModel(_))), "{refused:?}");
    }
}

#[test]
fn a_move_to_a_tier_that_is_not_there_is_refused() {
    let mut executor = PaperExecutor::new(capacity(4)).with_host_blocks(2);
    assert_eq!([Tier::Device, Tier::Host, Tier::Disk].map(|tier| executor.n_blocks_in(tier)), [4, 2, 0]);
    let to_disk = BlockLocation { tier: Tier::Disk, block: BlockId(0) };
    for to in [to_disk, BlockLocation::host(BlockId(2))] {
        let mut batch = ScheduledBatch::default();
        let refused = BlockMove { from: BlockLocation::device(BlockId(0)), to };
        batch.push_move(refused);
        assert_eq!(executor.submit(&batch), Err(ExecutorError::UnsupportedMove(refused)));
    }
}

/// Adapters have other numbers in other processes; the names of their blocks depend on what they are alone.
#[test]
fn two_processes_give_equal_content_equal_names() {
    let adapter = |id, digest| Some(Adapter { id: AdapterId(id), digest: AdapterDigest([digest; 32]) });
    let names = |adapter| {
        let mut engine = Engine::new(PaperExecutor::new(capacity(16)));
        engine.scheduler.take_cache_events();
        engine.generate(&Request { adapter, ..request(1, (0..50).collect()) });
        engine.scheduler.take_cache_events()
    };
    let poet = names(adapter(0, 7));
    assert_eq!(poet.len(), 3, "three full blocks");
    assert_eq!(poet, names(adapter(3, 7)));
    assert_ne!(poet, names(adapter(0, 8)));
    assert_ne!(poet, names(None));
}
