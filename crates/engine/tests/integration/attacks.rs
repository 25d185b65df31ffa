//! Attacks on the tiers of blocks: engines that end at any moment, flipped bits, cut and removed files, full
//! disks, other builds over the same folder, and other engines that send nonsense or nothing. No token is
//! wrong, and no request fails.

use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use throng_core::request::{BlockHolder, PeerId, Request, SamplingParams};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_engine::{Engine, EngineConfig, EngineHandle, Peers, Pull, PullBlocks, StoreSettings, Tiers};
use throng_testkit::nightly::{amount, requested};
use throng_testkit::paper_executor::PaperExecutor;
use throng_testkit::small_disk::SmallDisk;

use crate::store::{Slow, abandon, capacity, damage, found_tokens, prompt, recurrent, stop};

/// Names of other engines in this process, of which each request names one.
const PEER: PeerId = PeerId(3);

/// Another engine, which may be lost, or send nonsense.
#[derive(Debug)]
struct Peer {
    engine: EngineHandle,
    rng: Mutex<Rng>,
}

impl PullBlocks for Peer {
    fn pull(&self, mut pull: Pull) {
        let mut rng = self.rng.lock().unwrap().fork();
        let mut names: Vec<_> = pull.names().collect();
        let fault = rng.u32(..5);
        if fault == 0 {
            return;
        }
        let engine = self.engine.clone();
        std::thread::spawn(move || {
            if fault == 1 {
                let n = names.len();
                names.rotate_left(rng.usize(..n));
            }
            let Some(mut exported) = engine.export_blocks(&names) else { return };
            let mut came: Vec<_> = names.iter().map(|_| None).collect();
            while let Some(block) = exported.blocking_recv() {
                came[block.index] = block.block;
            }
            for block in came {
                let Some((content, mut bytes)) = block else { return };
                match (fault, rng.u32(..4)) {
                    (2, 0) => return,
                    (3, 0) => bytes.truncate(rng.usize(..bytes.len())),
                    _ => {}
                }
                if !pull.land(&content.hash, bytes) {
                    return;
                }
            }
        });
    }
}

/// Number of what happened.
#[derive(Debug, Default)]
struct Seen {
    n_attacks: u64,
    n_found: u64,
    n_failed_reads: u64,
    n_failed_writes: u64,
    n_pulled: u64,
    n_failed_pulls: u64,
}

fn start(folder: &Path, build: u32, capacity: ExecutorCapacity, peer: &Arc<Peer>) -> EngineHandle {
    let disk = StoreSettings {
        folder: folder.to_owned(),
        name: "org/paper".into(),
        max_bytes: 1 << 20,
        identity: format!("build {build}"),
    };
    let peers = Peers { puller: Arc::clone(peer) as Arc<dyn PullBlocks>, at_any_cost: false };
    start_with(capacity, &Tiers { disk: Some(disk), peers: Some(peers) })
}

fn start_with(capacity: ExecutorCapacity, tiers: &Tiers) -> EngineHandle {
    let each = Duration::from_micros(100);
    let make = move || Ok(Box::new(Slow { inner: PaperExecutor::new(capacity), each }) as Box<dyn Executor>);
    Engine::start_with_tiers(EngineConfig::default(), tiers, make).expect("it starts")
}

/// Asks for an answer, which must be right, and returns the number of prompt tokens that were found.
fn ask(engine: &EngineHandle, family: u32, n_tokens: usize, n_held: u32) -> u64 {
    let sampling = SamplingParams { max_tokens: 5, temperature: 0.0, ..SamplingParams::default() };
    let holder = (n_held > 0).then_some(BlockHolder { peer: PEER, n_blocks: n_held });
    let plain = Request::plain(engine.next_request_id(), prompt(family, n_tokens), sampling);
    let request = Request { holder, ..plain };
    u64::from(found_tokens(engine, request, &capacity()))
}

/// The file of a store, if there is one.
fn store_file(folder: &Path) -> Option<std::path::PathBuf> {
    let folders = fs::read_dir(folder).ok()?;
    folders.filter_map(|entry| Some(entry.ok()?.path().join("blocks"))).find(|path| path.exists())
}

fn attack(rng: &mut Rng, n_attacks: u64, capacity: ExecutorCapacity, seen: &mut Seen) {
    let mount = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(mount.path(), 512);
    let folder = disk.as_ref().map_or(mount.path().to_owned(), |disk| disk.path("blocks"));
    fs::create_dir_all(&folder).unwrap();
    let nobody = |engine: EngineHandle| Arc::new(Peer { engine, rng: Mutex::new(Rng::with_seed(1)) });
    let alone = start_with(capacity, &Tiers::default());
    let peers = Peers { puller: nobody(alone), at_any_cost: false };
    let owner = start_with(capacity, &Tiers { disk: None, peers: Some(peers) });
    let peer = Arc::new(Peer { engine: owner.clone(), rng: Mutex::new(rng.fork()) });
    let (mut build, mut is_full, mut n) = (0, false, 0);
    while n < n_attacks {
        let engine = start(&folder, build, capacity, &peer);
        for _ in 0..rng.u32(1..4) {
            let (family, n_tokens) = (rng.u32(..8), rng.usize(20..260));
            if rng.u32(..3) == 0 {
                ask(&owner, family, n_tokens, 0);
            }
            seen.n_found += ask(&engine, family, n_tokens, if rng.bool() { rng.u32(..16) } else { 0 });
            match rng.u32(..4) {
                0 if !is_full => {
                    // Under the eyes of the process, whose file it is.
                    if let Some(file) = store_file(&folder) {
                        damage(rng, &file);
                        n += 1;
                        let _ = File::options().append(true).create(true).open(file);
                    }
                }
                1 => {
                    if let Some(disk) = &disk {
                        if is_full {
                            disk.free()
                        } else {
                            disk.fill()
                        }
                        is_full = !is_full;
                        n += 1;
                    }
                }
                _ => {}
            }
        }
        let counters = engine.stats().scheduler.store;
        seen.n_failed_reads += counters.failed_reads;
        seen.n_failed_writes += counters.failed_writes;
        seen.n_pulled += counters.pulled_blocks;
        seen.n_failed_pulls += counters.failed_pulls;
        n += counters.failed_pulls.min(1) + 1;
        if rng.bool() {
            abandon(engine, &folder)
        } else {
            stop(engine, &folder)
        }
        if let Some(file) = store_file(&folder).filter(|_| !is_full && rng.bool()) {
            damage(rng, &file);
            n += 1;
        }
        if rng.u32(..8) == 0 {
            build = rng.u32(..3);
        }
    }
    seen.n_attacks += n;
}

#[test]
fn whatever_happens_to_the_tiers_no_token_is_wrong() {
    let seed = requested("THRONG_ATTACK_SEED").unwrap_or_else(fastrand::get_seed);
    println!("THRONG_ATTACK_SEED={seed}");
    let (mut rng, mut seen) = (Rng::with_seed(seed), Seen::default());
    let n_attacks = requested("THRONG_ATTACKS").unwrap_or_else(|| amount(100, 1_000));
    for capacity in [capacity(), recurrent()] {
        let one_step = ExecutorCapacity { max_steps_in_flight: 1, ..capacity };
        attack(&mut rng, n_attacks / 2, one_step, &mut seen);
    }
    println!("{seen:?}");
    let n_failed = seen.n_failed_reads + seen.n_failed_writes + seen.n_failed_pulls;
    assert!(seen.n_found > 0 && n_failed > 0, "{seen:?}");
}
