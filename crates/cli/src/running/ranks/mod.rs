//! A model that is divided over processes: rank 0 is the server, the others follow its steps. On this host
//! they are started by it, in an MPI job by the job's launcher. Does not know scheduling.

mod children;
pub mod follower;
pub mod job;
mod members;
mod messages;
mod placement;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use throng_comm::mpi::MpiJob;
use throng_comm::shared::SharedHost;
use throng_comm::{CommError, Communicator, Deadline, Loss};
use throng_core::engine::DEFAULT_EXECUTOR_TIMEOUT_MS;
use throng_core::fleet::replica::{RankCounters, RunningRanks};
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_kernels::threads::ThreadPool;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{LoadedModel, RunnerOptions};
use throng_model::parallel::prediction::{Measurements, Prediction, n_sums};
use throng_model::parallel::{Grid, RankLinks, probe};
use throng_model::runner::Leader;
use throng_os::affinity::{Cores, bind_to};

use crate::config::{EngineSection, ModelSection};
use crate::source::ModelSource;
use children::Children;
use members::Members;
use messages::{Answer, KV_DTYPES, Limits, Loaded, Order, Setup, receive, send};
use placement::{Place, grid, places};

/// Longest time until a rank's weights are loaded.
const START_LIMIT: Duration = Duration::from_secs(3600);
/// Timeout for another rank whose process is alive, unless a step may take longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Least of the longest times for starting processes again.
const MIN_START_LIMIT: Duration = Duration::from_millis(DEFAULT_EXECUTOR_TIMEOUT_MS);
/// Largest number of times that processes are started for one executor, if one is lost each time before it
/// can compute.
const MOST_STARTS: usize = 16;

/// A division with its processes, which are started anew for each executor.
#[derive(Debug)]
pub struct Ranks {
    division: Division,
    /// Processes that have loaded their parts.
    started: Option<RankProcesses>,
    /// Longest time for starting them again.
    start_limit: Duration,
}

impl Ranks {
    /// A division with processes that were started before, in this time.
    pub fn new(division: Division, started: RankProcesses, took: Duration) -> Self {
        let start_limit = took.saturating_mul(4).max(MIN_START_LIMIT);
        Self { division, started: Some(started), start_limit }
    }

    /// Longest time for making an executor, whose weights are read again.
    pub fn start_limit(&self) -> Duration {
        self.start_limit
    }

    /// An executor over the processes, which are started again if another executor ended them, and once more
    /// if one of them is lost before it can compute.
    ///
    /// # Errors
    /// When they cannot be started, or have no memory. Processes of an MPI job cannot be started again: this
    /// one ends then.
    pub fn executor(
        &mut self,
        model: &LoadedModel,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
    ) -> Result<Box<dyn Executor>, ExecutorError> {
        let begun = Instant::now();
        let mut n_starts = 0;
        loop {
            let started = self.started.take().map_or_else(|| self.start_again(), Ok);
            let made = started
                .and_then(|started| started.into_executor(model, threads, options, &self.division.counters));
            n_starts += 1;
            match made {
                Err(ExecutorError::PeerLost(reason))
                    if n_starts < MOST_STARTS && begun.elapsed() < self.start_limit / 2 =>
                {
                    tracing::warn!(reason, "the processes of the model are started once more");
                }
                made => return made,
            }
        }
    }

    fn start_again(&self) -> Result<RankProcesses, ExecutorError> {
        if self.division.job.is_some() {
            job::end_process(&CommError::PeerLost { rank: self.division.grid.n_all() - 1, how: Loss::Ended });
        }
        self.division.counters.count_loss();
        let lost = |error: anyhow::Error| ExecutorError::PeerLost(format!("{error:#}"));
        let mut started = self.division.start().map_err(lost)?;
        started.wait_until_loaded().map_err(lost)?;
        tracing::info!("the processes of the model were started again");
        Ok(started)
    }

    /// Keeps this thread, and those that it starts, on the cores of rank 0.
    pub fn bind(&self) {
        self.division.bind();
    }
}

/// Division of a model over ranks, and the cores and memory of each.
#[derive(Debug, Clone)]
pub struct Division {
    grid: Grid,
    places: Vec<Place>,
    /// Path of the model, or name of a built-in one.
    model: String,
    section: ModelSection,
    patience: Duration,
    /// The job whose processes are the ranks; `None`: rank 0 starts them.
    job: Option<Arc<MpiJob>>,
    n_hosts: usize,
    counters: Arc<RankCounters>,
}

impl Division {
    /// The division by the settings; `None`: one process has the whole model.
    ///
    /// # Errors
    /// When settings contradict each other, or a process of the MPI job is lost.
    pub fn of(section: &ModelSection, engine: &EngineSection, source: &ModelSource) -> Result<Option<Self>> {
        let job = job::claim();
        let Some(grid) = grid(section, job.as_ref().map(|job| job.n_ranks()))? else { return Ok(None) };
        job::check_built()?;
        if section.reference {
            bail!(
                "--reference computes in one process: leave out --tensor-parallel-size and --pipeline-parallel-size"
            );
        }
        let model = match source {
            ModelSource::BuiltIn(model) => model.name.to_owned(),
            ModelSource::Path { path, .. } => path.to_string_lossy().into_owned(),
        };
        let patience = engine.step_timeout_s.map_or(PATIENCE, Duration::from_secs);
        let (places, n_hosts) = match &job {
            Some(job) => job::places(&mut *job.all(), section.n_threads)?,
            None => (places(grid.n_all(), section.n_threads), 1),
        };
        Ok(Some(Self {
            grid,
            places,
            model,
            section: section.clone(),
            patience,
            job,
            n_hosts,
            counters: Arc::default(),
        }))
    }

    /// The arrangement of the processes.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The ranks, for reports.
    pub fn running(&self) -> RunningRanks {
        RunningRanks {
            tensor: self.grid.n_ranks as u32,
            pipeline: self.grid.n_stages as u32,
            transport: self.transport(),
            counters: Arc::clone(&self.counters),
        }
    }

    fn transport(&self) -> &'static str {
        if self.job.is_some() { "MPI" } else { "shared memory" }
    }

    /// Number of compute threads of rank 0.
    pub fn n_threads(&self) -> usize {
        self.places[0].n_threads
    }

    /// Keeps this thread, and those that it starts, on the cores of rank 0.
    fn bind(&self) {
        if !self.places[0].cores.is_empty() {
            bind_to(&self.places[0].cores);
        }
    }

    /// Runs a function on the cores of rank 0.
    pub fn on_own_cores<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = Cores::allowed().logical;
        self.bind();
        let result = run();
        bind_to(&before);
        result
    }

    /// Has the other processes load their parts, after starting them if they are in no MPI job.
    ///
    /// # Errors
    /// When the system refuses memory or processes.
    pub fn start(&self) -> Result<RankProcesses> {
        let (children, members) = match &self.job {
            Some(job) => (None, Members::Job(Arc::clone(job))),
            None => {
                let host = SharedHost::create(self.grid.n_all(), &self.grid.groups())?;
                let membership = host.join(0)?;
                (Some(Children::start(self.grid, &host)?), Members::Shared(membership))
            }
        };
        let mut all = members.all();
        for rank in 1..self.grid.n_all() {
            let patience_ms = self.patience.as_millis() as u64;
            let mut setup = Setup::new(&self.section, self.model.clone(), self.grid, patience_ms);
            (setup.cores, setup.n_threads) = (self.places[rank].cores.clone(), self.places[rank].n_threads);
            send(&mut *all, rank, &setup, Deadline::within(START_LIMIT))?;
        }
        let (grid, patience) = (self.grid, self.patience);
        let links = members.links(grid, 0, patience);
        Ok(RankProcesses { children, members, all, links, grid, patience, loaded: Vec::new() })
    }

    /// The processes, once they have loaded their parts and if they are expected to be faster than one
    /// process. `own_bytes` are the weights of this process.
    ///
    /// # Errors
    /// When one could not load its part or is lost, or the division is refused.
    pub fn ready(
        &self,
        mut processes: RankProcesses,
        (model, own_bytes): (&LoadedModel, u64),
        has_head: bool,
    ) -> Result<RankProcesses> {
        if has_head {
            bail!("an EAGLE-3 head reads what a whole model computes: it cannot be used with a divided one");
        }
        processes.wait_until_loaded()?;
        tracing::info!("{}", self.describe());
        self.check_speed(&mut processes, model, own_bytes)?;
        Ok(processes)
    }

    /// Measures memory and exchanges, logs the expected speed of the division, and refuses a division that is
    /// expected to be slower than one process, unless it is forced.
    fn check_speed(&self, processes: &mut RankProcesses, model: &LoadedModel, own_bytes: u64) -> Result<()> {
        let config = &model.config;
        let measured = self.on_own_cores(|| {
            let threads = Arc::new(ThreadPool::new(self.places[0].n_threads));
            processes.measure(&threads, config.hidden_size, own_bytes)
        });
        let nodes = self.places.iter().map(|place| place.node).collect();
        let measured = Measurements { nodes, ..measured? };
        let prediction = Prediction::of(self.grid, n_sums(config), &measured);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let sum =
            measured.sum.map(|sum| format!("a row is summed in {:.1} µs, ", us(sum))).unwrap_or_default();
        tracing::info!(
            "transport: {} ({sum}sent in {:.1} µs, medians); expected for one user: {:.2} ms a token, \
             {:.1} % of it in communication; in one process {:.2} ms",
            self.transport(),
            us(measured.message),
            prediction.divided_s * 1e3,
            prediction.exchanging * 100.0,
            prediction.whole_s * 1e3,
        );
        Ok(prediction.check(self.section.force)?)
    }

    /// A line for the log.
    fn describe(&self) -> String {
        let Grid { n_ranks, n_stages } = self.grid;
        let threads: Vec<String> = self.places.iter().map(|place| place.n_threads.to_string()).collect();
        format!(
            "divided over {} processes of {} ({n_ranks} for each layer, {n_stages} {}), with {} threads",
            self.grid.n_all(),
            if self.n_hosts == 1 { "this host".to_owned() } else { format!("{} hosts", self.n_hosts) },
            if n_stages == 1 { "stage" } else { "stages" },
            threads.join(" + "),
        )
    }
}

/// The other processes of a model, and rank 0's place among them.
#[derive(Debug)]
pub struct RankProcesses {
    /// First, so that the processes end before the memory is left. None in an MPI job.
    children: Option<Children>,
    members: Members,
    all: Box<dyn Communicator>,
    links: RankLinks,
    grid: Grid,
    patience: Duration,
    loaded: Vec<Loaded>,
}

impl RankProcesses {
    /// Waits until all ranks have loaded their parts.
    ///
    /// # Errors
    /// When one could not, or ended.
    pub fn wait_until_loaded(&mut self) -> Result<()> {
        self.loaded.clear();
        for rank in 1..self.grid.n_all() {
            let answer: Answer<Loaded> = receive(&mut *self.all, rank, Deadline::within(START_LIMIT))?;
            match answer {
                Ok(loaded) => self.loaded.push(loaded),
                Err(reason) => bail!("rank {rank}: {reason}"),
            }
        }
        Ok(())
    }

    /// Bytes that a block of keys and values takes in all other processes together.
    pub fn block_bytes(&self, dtype: KvDtype) -> Option<u64> {
        let idx = KV_DTYPES.iter().position(|of| *of == dtype)?;
        self.loaded.iter().map(|loaded| loaded.block_bytes[idx]).sum()
    }

    /// Bytes of a slot of recurrent state on all ranks together.
    pub fn state_bytes(&self) -> u64 {
        self.loaded.iter().map(|loaded| loaded.state_bytes).sum()
    }

    /// Measures memory and exchanges of all ranks at the same time. `own_bytes` are those of this rank's
    /// weights.
    fn measure(
        &mut self,
        threads: &Arc<ThreadPool>,
        n_elements: usize,
        own_bytes: u64,
    ) -> Result<Measurements> {
        let others = 1..self.grid.n_all();
        for rank in others.clone() {
            send(&mut *self.all, rank, &Order::Measure { n_elements }, Deadline::within(self.patience))?;
        }
        let mut bytes_per_s = vec![probe::read(&mut *self.all, threads)?];
        let sum = probe::sum(&mut self.links, n_elements);
        let message = probe::ping(&mut *self.all, n_elements)?;
        for rank in others {
            bytes_per_s.push(receive(&mut *self.all, rank, Deadline::within(self.patience))?);
        }
        let weight_bytes = self.loaded.iter().map(|loaded| loaded.weight_bytes);
        let weight_bytes = std::iter::once(own_bytes).chain(weight_bytes).collect();
        Ok(Measurements { weight_bytes, bytes_per_s, nodes: Vec::new(), sum, message })
    }

    /// An executor over all processes, which ends them when it is dropped.
    ///
    /// # Errors
    /// When one is lost or has no memory.
    pub fn into_executor(
        mut self,
        model: &LoadedModel,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
        counters: &Arc<RankCounters>,
    ) -> Result<Box<dyn Executor>, ExecutorError> {
        let lost = |error: anyhow::Error| ExecutorError::PeerLost(format!("{error:#}"));
        let by = || Deadline::within(START_LIMIT);
        let others = 1..self.grid.n_all();
        for rank in others.clone() {
            let order = Order::Run(Limits::of(&options.limits));
            send(&mut *self.all, rank, &order, by()).map_err(lost)?;
        }
        let links = std::mem::take(&mut self.links);
        let runner = model.rank_runner(threads, options, links);
        let runner = runner.map_err(|error| ExecutorError::Device(error.to_string()))?;
        for rank in others {
            let answer: Answer<()> = receive(&mut *self.all, rank, by()).map_err(lost)?;
            answer.map_err(|reason| ExecutorError::Device(format!("rank {rank}: {reason}")))?;
        }
        let Self { children, members, all, patience, .. } = self;
        let leader = Leader::new(runner, all, patience, Box::new((children, members)));
        Ok(Box::new(leader.counted_by(Arc::clone(counters))))
    }
}
