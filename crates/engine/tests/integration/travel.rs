//! Blocks that travel between engines: a conversation that moves is not computed again, and an engine that
//! has dropped its blocks, falls silent, ends or sends nonsense costs time and changes no token.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_core::request::{BlockHolder, PeerId, Request, SamplingParams, TenantId, TokenId};
use throng_core::scheduling::batch::{BlockId, MemorySlot, ScheduledBatch, StepOutput};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::scheduling::block_store::StoreCounters;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle, Peers, Pull, PullBlocks, StoreSettings, Tiers};
use throng_testkit::paper_executor::PaperExecutor;

use crate::store::found_tokens;

const PROMPT_TOKENS: usize = 200;
/// Full blocks of a prompt but for its last token.
const PROMPT_BLOCKS: u32 = 12;

fn capacity(n_blocks: u32) -> ExecutorCapacity {
    ExecutorCapacity {
        n_blocks,
        max_batch_tokens: 64,
        max_batch_sequences: 4,
        max_sequence_tokens: 300,
        vocabulary_size: 50,
        n_state_slots: 0,
        max_steps_in_flight: 1,
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    }
}

/// An executor for which computing takes longer than a transfer.
struct Slow(PaperExecutor);

impl Executor for Slow {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        self.0.block_layout()
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        self.0.export_blocks(blocks)
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        self.0.import_blocks(exported, to)
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.0.export_state(slot, part)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        self.0.import_state(slot, part, bytes)
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.0.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        std::thread::sleep(Duration::from_millis(4) * batch.n_tokens() as u32);
        self.0.collect(batch, output)
    }
}

/// Behaviour of the other engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Ends after this many blocks.
    EndsAfter(usize),
    /// Sends a block with a byte too few.
    SendsTooLittle,
    /// Sends the blocks in another order.
    SendsAnother,
    /// Neither sends nor ends.
    IsSilent,
}

/// Asks an engine of this process.
#[derive(Debug)]
struct Neighbour {
    engine: Mutex<Option<EngineHandle>>,
    fault: Fault,
    asked: Mutex<Vec<BlockHash>>,
    silent: Mutex<Vec<Pull>>,
}

impl Neighbour {
    fn new(engine: Option<EngineHandle>, fault: Fault) -> Arc<Self> {
        let (asked, silent) = Default::default();
        Arc::new(Self { engine: Mutex::new(engine), fault, asked, silent })
    }
}

impl PullBlocks for Neighbour {
    fn pull(&self, mut pull: Pull) {
        assert_eq!(pull.peer(), PeerId(3));
        let mut names: Vec<_> = pull.names().collect();
        self.asked.lock().unwrap().extend(&names);
        if self.fault == Fault::IsSilent {
            return self.silent.lock().unwrap().push(pull);
        }
        let Some(engine) = self.engine.lock().unwrap().clone() else { return };
        if self.fault == Fault::SendsAnother {
            names.rotate_left(1);
        }
        let fault = self.fault;
        std::thread::spawn(move || {
            let mut exported = engine.export_blocks(&names).expect("it exchanges blocks");
            let mut came: Vec<_> = names.iter().map(|_| None).collect();
            while let Some(block) = exported.blocking_recv() {
                came[block.index] = block.block;
            }
            for (i, block) in came.into_iter().enumerate() {
                let Some((content, mut bytes)) = block else { return };
                if fault == Fault::EndsAfter(i) {
                    return;
                }
                if fault == Fault::SendsTooLittle && i == 1 {
                    bytes.pop();
                }
                if !pull.land(&content.hash, bytes) {
                    return;
                }
            }
        });
    }
}

fn start(n_blocks: u32, tiers: &Tiers) -> EngineHandle {
    start_model(capacity(n_blocks), tiers)
}

/// An engine of a model with this capacity.
fn start_model(capacity: ExecutorCapacity, tiers: &Tiers) -> EngineHandle {
    let make = move || Ok(Box::new(Slow(PaperExecutor::new(capacity))) as Box<dyn Executor>);
    Engine::start_with_tiers(EngineConfig::default(), tiers, make).expect("it starts")
}

fn among(puller: &Arc<Neighbour>) -> Tiers {
    let puller = Arc::clone(puller) as Arc<dyn PullBlocks>;
    Tiers { disk: None, peers: Some(Peers { puller, at_any_cost: false }) }
}

/// An engine that is asked by others only.
fn owner(n_blocks: u32) -> EngineHandle {
    start(n_blocks, &among(&Neighbour::new(None, Fault::None)))
}

fn prompt(family: u32) -> Vec<TokenId> {
    (0..PROMPT_TOKENS as u32).map(|i| (i * 7 + family * 31 + i / 16 * family) % 50).collect()
}

fn request(engine: &EngineHandle, family: u32, n_held: u32) -> Request {
    let sampling = SamplingParams { max_tokens: 5, temperature: 0.0, ..SamplingParams::default() };
    let holder = (n_held > 0).then_some(BlockHolder { peer: PeerId(3), n_blocks: n_held });
    Request { holder, ..Request::plain(engine.next_request_id(), prompt(family), sampling) }
}

/// Runs a request, checks its tokens, and returns the number of prompt tokens that were found.
fn run(engine: &EngineHandle, request: Request) -> u32 {
    found_tokens(engine, request, &capacity(32))
}

fn counters(engine: &EngineHandle) -> StoreCounters {
    engine.stats().scheduler.store
}

#[test]
fn a_conversation_that_moves_is_not_computed_again() {
    let owner = owner(32);
    let first = request(&owner, 1, 0);
    assert_eq!(run(&owner, first), 0);
    let puller = Neighbour::new(Some(owner.clone()), Fault::None);
    let other = start(32, &among(&puller));
    let moved = request(&other, 1, PROMPT_BLOCKS);
    assert_eq!(run(&other, moved), 16 * PROMPT_BLOCKS);
    assert_eq!(counters(&other).pulled_blocks, u64::from(PROMPT_BLOCKS));
    assert_eq!(counters(&owner).served_blocks, u64::from(PROMPT_BLOCKS));
    // The second engine has the blocks itself now.
    let again = request(&other, 1, PROMPT_BLOCKS);
    assert_eq!(run(&other, again), 16 * PROMPT_BLOCKS);
    assert_eq!(counters(&other).pulled_blocks, u64::from(PROMPT_BLOCKS));
}

/// States are in two parts, and those of the first engine are asked for before its blocks.
#[test]
fn a_state_travels_with_its_blocks_or_all_is_computed() {
    let recurrent = ExecutorCapacity { n_state_slots: 6, ..capacity(32) };
    let owner = start_model(recurrent, &among(&Neighbour::new(None, Fault::None)));
    let first = request(&owner, 1, 0);
    assert_eq!(run(&owner, first), 0);
    for (fault, n_blocks) in [
        (Fault::None, PROMPT_BLOCKS),
        (Fault::EndsAfter(1), 0),
        (Fault::EndsAfter(9), 0),
        (Fault::SendsTooLittle, 0),
        (Fault::SendsAnother, 0),
        (Fault::IsSilent, 0),
    ] {
        let puller = Neighbour::new(Some(owner.clone()), fault);
        let other = start_model(recurrent, &among(&puller));
        let moved = request(&other, 1, PROMPT_BLOCKS);
        assert_eq!(run(&other, moved), 16 * n_blocks, "{fault:?}");
        puller.silent.lock().unwrap().clear();
        // The second engine has the state itself now.
        let again = request(&other, 1, 0);
        assert_eq!(run(&other, again), 16 * PROMPT_BLOCKS, "{fault:?}");
    }
    // The other engine has no state at the end of these blocks.
    let puller = Neighbour::new(Some(owner), Fault::None);
    let other = start_model(recurrent, &among(&puller));
    let moved = request(&other, 1, PROMPT_BLOCKS - 1);
    assert_eq!(run(&other, moved), 0);
    assert_eq!(counters(&other).pulled_blocks, 0);
}

/// Blocks that came from another engine are written to disk after they are in memory.
#[test]
fn blocks_that_came_are_kept_on_disk_as_they_are() {
    let owner = owner(64);
    for family in 0..4 {
        let first = request(&owner, family, 0);
        run(&owner, first);
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = StoreSettings {
        folder: folder.path().to_owned(),
        name: "org/paper".into(),
        max_bytes: 1 << 20,
        identity: "build 1".into(),
    };
    let puller = Neighbour::new(Some(owner), Fault::None);
    // Blocks for about one and a half prompts.
    let other = start(18, &Tiers { disk: Some(disk), ..among(&puller) });
    for family in 0..4 {
        let moved = request(&other, family, PROMPT_BLOCKS);
        assert_eq!(run(&other, moved), 16 * PROMPT_BLOCKS);
    }
    let n_pulled = counters(&other).pulled_blocks;
    for family in 0..4 {
        let again = request(&other, family, 0);
        assert_eq!(run(&other, again), 16 * PROMPT_BLOCKS);
    }
    let counters = counters(&other);
    assert!(counters.loaded_blocks > 0 && counters.pulled_blocks == n_pulled, "{counters:?}");
}

#[test]
fn few_blocks_are_computed() {
    let owner = owner(32);
    let first = request(&owner, 1, 0);
    run(&owner, first);
    let puller = Neighbour::new(Some(owner), Fault::None);
    let other = start(32, &among(&puller));
    let moved = request(&other, 1, 7);
    assert_eq!(run(&other, moved), 0);
    assert!(puller.asked.lock().unwrap().is_empty());
}

#[test]
fn whatever_the_other_engine_does_the_tokens_are_the_same() {
    let owner = owner(32);
    for family in 0..2 {
        let first = request(&owner, family, 0);
        run(&owner, first);
    }
    for (fault, n_blocks) in [
        (Fault::EndsAfter(0), 0),
        (Fault::EndsAfter(5), 5),
        (Fault::SendsTooLittle, 1),
        (Fault::SendsAnother, 0),
        (Fault::IsSilent, 0),
    ] {
        let puller = Neighbour::new(Some(owner.clone()), fault);
        let other = start(32, &among(&puller));
        let moved = request(&other, 1, PROMPT_BLOCKS);
        assert_eq!(run(&other, moved), 16 * n_blocks, "{fault:?}");
        puller.silent.lock().unwrap().clear();
        let moved = request(&other, 0, 0);
        assert_eq!(run(&other, moved), 0, "{fault:?}");
        let counters = counters(&other);
        assert_eq!(counters.pulled_blocks, u64::from(n_blocks), "{fault:?}");
        assert_eq!(counters.failed_pulls, u64::from(PROMPT_BLOCKS - n_blocks), "{fault:?}");
    }
}

#[test]
fn blocks_that_gave_way_are_computed_or_come_from_the_owners_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = StoreSettings {
        folder: folder.path().to_owned(),
        name: "org/paper".into(),
        max_bytes: 1 << 20,
        identity: "build 1".into(),
    };
    for disk in [None, Some(disk)] {
        let puller = Neighbour::new(None, Fault::None);
        // Blocks for about one and a half prompts.
        let owner = start(18, &Tiers { disk: disk.clone(), ..among(&puller) });
        for family in [1, 2, 3] {
            let first = request(&owner, family, 0);
            run(&owner, first);
        }
        let other = start(32, &among(&Neighbour::new(Some(owner.clone()), Fault::None)));
        let moved = request(&other, 1, PROMPT_BLOCKS);
        let n_found = run(&other, moved);
        let is_whole = n_found == 16 * PROMPT_BLOCKS;
        assert_eq!(is_whole, disk.is_some(), "{n_found} tokens with {disk:?}");
    }
}

#[test]
fn a_tenant_cannot_ask_for_the_blocks_of_another() {
    let owner = owner(32);
    let first = request(&owner, 1, 0);
    run(&owner, first);
    let puller = Neighbour::new(Some(owner), Fault::None);
    let other = start(32, &among(&puller));
    let with_salt =
        |salt: &str| Request { cache_salt: Some(salt.into()), ..request(&other, 1, PROMPT_BLOCKS) };
    let of_tenant = Request { tenant: TenantId("another".into()), ..request(&other, 1, PROMPT_BLOCKS) };
    for foreign in [of_tenant, with_salt("a"), with_salt("b")] {
        let root = BlockHash::root(&foreign.tenant, foreign.cache_salt.as_deref(), None);
        let own: Vec<_> = BlockHash::names_after(root, 0, &foreign.prompt, None).collect();
        puller.asked.lock().unwrap().clear();
        assert_eq!(run(&other, foreign), 0);
        let asked = std::mem::take(&mut *puller.asked.lock().unwrap());
        assert!(!asked.is_empty() && asked.iter().all(|name| own.contains(name)), "{asked:?}");
    }
    assert_eq!(counters(&other).pulled_blocks, 0);
}

#[test]
fn an_engine_that_ends_leaves_nobody_waiting() {
    let owner = owner(32);
    let first = request(&owner, 1, 0);
    run(&owner, first);
    let names: Vec<_> = (0..9).map(|i| BlockHash::from_bytes([i; 32])).collect();
    let mut exported = owner.export_blocks(&names).expect("it exchanges blocks");
    for _ in 0..9 {
        assert!(exported.blocking_recv().expect("an answer").block.is_none());
    }
    assert!(exported.blocking_recv().is_none());
    // Without neighbours nothing is exchanged.
    let alone = start(32, &Tiers::default());
    assert!(alone.block_layout().is_none() && alone.export_blocks(&names).is_none());
}
