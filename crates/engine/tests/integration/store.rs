//! Blocks that are kept on disk: they come back in the same process and in the next one, and a file that is
//! damaged, cut, full or of another build costs time and changes no token.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use throng_core::request::{Request, SamplingParams, TenantId, TokenId};
use throng_core::scheduling::batch::{BlockId, MemorySlot, ScheduledBatch, StepOutput};
use throng_core::scheduling::block_exchange::{BlockExchangeError, BlockLayout, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle, StoreSettings, StreamEvent, Tiers};
use throng_testkit::paper_executor::{PaperExecutor, paper_answer};
use throng_testkit::small_disk::SmallDisk;

/// Blocks of the executor: about one and a half of the longest prompts.
const N_BLOCKS: u32 = 24;

pub fn capacity() -> ExecutorCapacity {
    ExecutorCapacity {
        n_blocks: N_BLOCKS,
        max_batch_tokens: 64,
        max_batch_sequences: 4,
        max_sequence_tokens: 300,
        vocabulary_size: 50,
        n_state_slots: 0,
        max_steps_in_flight: 2,
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    }
}

/// An executor for which computing takes longer than reading.
pub struct Slow {
    pub inner: PaperExecutor,
    pub each: Duration,
}

impl Executor for Slow {
    fn capacity(&self) -> ExecutorCapacity {
        self.inner.capacity()
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        self.inner.block_layout()
    }

    fn export_blocks(&mut self, blocks: &[BlockId]) -> Result<ExportedBlocks, BlockExchangeError> {
        self.inner.export_blocks(blocks)
    }

    fn import_blocks(&mut self, exported: &ExportedBlocks, to: &[BlockId]) -> Result<(), BlockExchangeError> {
        self.inner.import_blocks(exported, to)
    }

    fn export_state(&mut self, slot: MemorySlot, part: u32) -> Result<Vec<u8>, BlockExchangeError> {
        self.inner.export_state(slot, part)
    }

    fn import_state(&mut self, slot: MemorySlot, part: u32, bytes: &[u8]) -> Result<(), BlockExchangeError> {
        self.inner.import_state(slot, part, bytes)
    }

    fn submit(&mut self, batch: &ScheduledBatch) -> Result<(), ExecutorError> {
        self.inner.submit(batch)
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        std::thread::sleep(self.each * batch.n_tokens() as u32);
        self.inner.collect(batch, output)
    }
}

fn start(folder: &Path, identity: &str) -> EngineHandle {
    // A busy machine may take its time over a file of a few pages.
    start_with(folder, identity, Duration::from_millis(4))
}

fn start_with(folder: &Path, identity: &str, each: Duration) -> EngineHandle {
    start_model(folder, identity, each, capacity())
}

/// An engine of a model with this capacity.
fn start_model(folder: &Path, identity: &str, each: Duration, capacity: ExecutorCapacity) -> EngineHandle {
    let store = StoreSettings {
        folder: folder.to_owned(),
        name: "org/paper".into(),
        max_bytes: 1 << 20,
        identity: identity.into(),
    };
    let make = move || Ok(Box::new(Slow { inner: PaperExecutor::new(capacity), each }) as Box<dyn Executor>);
    Engine::start_with_tiers(EngineConfig::default(), &Tiers { disk: Some(store), peers: None }, make)
        .expect("it starts")
}

/// Ends the engine, once all its blocks are saved, and waits until it has let go of its file.
pub fn stop(engine: EngineHandle, folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(engine.drain(Duration::from_secs(20)));
    drop(engine);
    await_end(folder);
}

/// Ends the engine with whatever is not saved, and waits until it has let go of its file.
pub fn abandon(engine: EngineHandle, folder: &Path) {
    engine.shutdown();
    drop(engine);
    await_end(folder);
}

fn await_end(folder: &Path) {
    let locks: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().join("lock")).collect();
    let is_free = |lock: &PathBuf| fs::File::open(lock).is_ok_and(|file| file.try_lock().is_ok());
    while !locks.iter().any(is_free) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn prompt(family: u32, n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 7 + family * 31 + i / 16 * family) % 50).collect()
}

/// Runs a greedy request for this prompt, as [`found_tokens`].
fn generate(engine: &EngineHandle, prompt: Vec<TokenId>) -> u32 {
    let sampling = SamplingParams { max_tokens: 5, temperature: 0.0, ..SamplingParams::default() };
    let request = Request::plain(engine.next_request_id(), prompt, sampling);
    found_tokens(engine, request, &capacity())
}

/// Runs a request, checks its tokens, and returns the number of prompt tokens that were found.
pub fn found_tokens(engine: &EngineHandle, request: Request, capacity: &ExecutorCapacity) -> u32 {
    let expected = paper_answer(&request, capacity);
    let mut stream = engine.submit(request).expect("it can run");
    let (mut tokens, mut n_cached) = (Vec::new(), 0);
    while let Some(event) = stream.blocking_next() {
        match event {
            StreamEvent::Token { report, .. } => tokens.push(report.chosen.token),
            StreamEvent::Prompt { cached_tokens, .. } => n_cached = cached_tokens,
            StreamEvent::Failed { error } => panic!("it failed: {error}"),
            StreamEvent::Finished { .. } => {}
        }
    }
    let expected: Vec<_> = expected.sequences[0].0.iter().map(|token| token.chosen.token).collect();
    assert_eq!(tokens, expected);
    n_cached
}

/// The one folder with a store.
fn store_folder(folder: &Path) -> PathBuf {
    let mut folders: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders.remove(0)
}

#[test]
fn what_leaves_the_memory_comes_back_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path(), "build 1");
    for family in 0..4 {
        assert_eq!(generate(&engine, prompt(family, 200)), 0);
    }
    // Its blocks were given to the others.
    assert_eq!(generate(&engine, prompt(0, 200)), 192);
    let stats = engine.stats().scheduler;
    assert!(stats.store.loaded_blocks > 0, "{stats:?}");
    stop(engine, folder.path());
}

#[test]
fn the_next_process_begins_where_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path(), "build 1");
    for family in 0..4 {
        generate(&engine, prompt(family, 200));
    }
    stop(engine, folder.path());
    let engine = start(folder.path(), "build 1");
    for family in 0..4 {
        assert_eq!(generate(&engine, prompt(family, 200)), 192);
    }
    assert_eq!(generate(&engine, prompt(9, 200)), 0);
    let mut other = Request::plain(engine.next_request_id(), prompt(0, 200), SamplingParams::default());
    other.tenant = TenantId("another".into());
    let mut stream = engine.submit(other).expect("it can run");
    while let Some(event) = stream.blocking_next() {
        if let StreamEvent::Prompt { cached_tokens, .. } = event {
            assert_eq!(cached_tokens, 0, "a prompt of another tenant");
        }
    }
    stop(engine, folder.path());
    let own = store_folder(folder.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&own), mode(&own.join("blocks"))), (0o700, 0o600));

    let engine = start(folder.path(), "build 2");
    assert_eq!(generate(&engine, prompt(0, 200)), 0, "blocks of another build");
    stop(engine, folder.path());
    assert_ne!(store_folder(folder.path()), own, "nobody can use the old one any more");
}

/// A model with recurrent layers: it has states for four sequences and two checkpoints.
pub fn recurrent() -> ExecutorCapacity {
    ExecutorCapacity { n_state_slots: 6, ..capacity() }
}

#[test]
fn states_come_back_with_their_blocks_also_in_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let start = |identity| start_model(folder.path(), identity, Duration::from_millis(4), recurrent());
    let engine = start("build 1");
    for family in 0..8 {
        assert_eq!(generate(&engine, prompt(family, 200)), 0);
    }
    // Blocks and states were given to the others.
    assert_eq!(generate(&engine, prompt(0, 200)), 192);
    // The next turn of a conversation continues from the state within it.
    assert_eq!(generate(&engine, prompt(1, 230)), 192);
    let stats = engine.stats().scheduler;
    assert!(stats.store.loaded_blocks > 0, "{stats:?}");
    stop(engine, folder.path());
    let engine = start("build 1");
    for family in 0..8 {
        assert!(generate(&engine, prompt(family, 200)) >= 192, "family {family}");
    }
    assert_eq!(generate(&engine, prompt(9, 200)), 0);
    stop(engine, folder.path());
    let engine = start("build 2");
    assert_eq!(generate(&engine, prompt(0, 200)), 0, "states of another build");
    stop(engine, folder.path());
}

#[test]
fn a_damaged_file_of_states_changes_no_token() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let (mut n_found, mut n_failed) = (0, 0);
    for _ in 0..25 {
        let engine = start_model(folder.path(), "build 1", Duration::from_micros(100), recurrent());
        for _ in 0..rng.u32(2..10) {
            n_found += generate(&engine, prompt(rng.u32(..6), rng.usize(20..260)));
        }
        n_failed += engine.stats().scheduler.store.failed_reads;
        stop(engine, folder.path());
        damage(&mut rng, &store_folder(folder.path()).join("blocks"));
    }
    assert!(n_found > 0 && n_failed > 0, "{n_found} tokens found, {n_failed} reads failed");
}

#[test]
fn two_processes_do_not_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (start(folder.path(), "build 1"), start(folder.path(), "build 1"));
    assert_eq!([&first, &second].map(|engine| generate(engine, prompt(1, 200))), [0, 0]);
    stop(first, folder.path());
    stop(second, folder.path());
    let folders: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 2);
    let is_free = |store: &PathBuf| fs::File::open(store.join("lock")).unwrap().try_lock().is_ok();
    while !folders.iter().all(is_free) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The start of one leaves the file of the other, which finds it again.
    let again = [(); 2].map(|()| start(folder.path(), "build 1"));
    again.iter().for_each(|engine| assert!(generate(engine, prompt(1, 200)) > 100));
}

/// Does something to a file that a crash, a fault of the medium or an operator might do.
pub fn damage(rng: &mut Rng, path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let n_bytes = file.metadata().unwrap().len().max(1);
    match rng.u32(..8) {
        0 => file.set_len(rng.u64(..n_bytes)).unwrap(),
        1 => fs::remove_file(path).unwrap(),
        2 => file.set_len(n_bytes + rng.u64(..10_000)).unwrap(),
        3 => {
            // One slot over another.
            let n_pages = (n_bytes / 4096).max(1);
            let (from, to) = (rng.u64(1..=n_pages), rng.u64(1..=n_pages));
            let mut page = vec![0; 4096];
            if file.read_exact_at(&mut page, from * 4096).is_ok() {
                file.write_all_at(&page, to * 4096).unwrap();
            }
        }
        _ => {
            for _ in 0..rng.u32(1..40) {
                // Most of a page is not used here.
                let at = rng.u64(..n_bytes) / 4096 * 4096 + rng.u64(..400);
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    file.write_all_at(&[byte[0] ^ (1 << rng.u32(..8))], at).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_damaged_file_changes_no_token() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let (mut n_found, mut n_failed) = (0, 0);
    for round in 0..25 {
        let engine = start_with(folder.path(), "build 1", Duration::from_micros(100));
        for _ in 0..rng.u32(2..10) {
            n_found += generate(&engine, prompt(rng.u32(..6), rng.usize(20..260)));
            if rng.bool() {
                // Also under the eyes of the process, whose file it is.
                damage(&mut rng, &store_folder(folder.path()).join("blocks"));
                fs::File::options()
                    .append(true)
                    .create(true)
                    .open(store_folder(folder.path()).join("blocks"))
                    .unwrap();
            }
        }
        n_failed += engine.stats().scheduler.store.failed_reads;
        stop(engine, folder.path());
        damage(&mut rng, &store_folder(folder.path()).join("blocks"));
        assert!(round < 24 || n_found > 0, "nothing was ever found");
    }
    assert!(n_failed > 0, "no damage was met");
}

#[test]
fn a_full_disk_costs_the_cache_only() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path(), 256) else { return };
    let blocks = disk.path("blocks");
    let engine = start(&blocks, "build 1");
    generate(&engine, prompt(0, 200));
    disk.fill();
    for family in 1..6 {
        generate(&engine, prompt(family, 200));
    }
    let stats = engine.stats().scheduler;
    assert!(stats.store.failed_writes > 0, "{stats:?}");
    assert_eq!(generate(&engine, prompt(0, 200)), 192, "it was written before");
    stop(engine, &blocks);
    disk.free();
}
