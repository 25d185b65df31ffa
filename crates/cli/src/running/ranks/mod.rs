//! A model that is divided over processes of this host: rank 0 is the server, the others are started by it
//! and follow its steps. Does not know scheduling.

mod children;
pub mod follower;
mod messages;
mod placement;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use throng_comm::shared::{Membership, SharedCommunicator, SharedHost};
use throng_comm::{Communicator, Deadline};
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_kernels::threads::ThreadPool;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{LoadedModel, RunnerOptions};
use throng_model::parallel::group::RankGroup;
use throng_model::parallel::prediction::{Measurements, Prediction, n_sums};
use throng_model::parallel::{Grid, RankLinks, StageLinks, probe};
use throng_model::runner::Leader;
use throng_os::affinity::{Cores, bind_to};

use crate::config::{EngineSection, ModelSection};
use crate::source::ModelSource;
use children::Children;
use messages::{Answer, KV_DTYPES, Limits, Loaded, Order, Setup, receive, send};
use placement::{Place, grid, places};

/// Longest time until a rank's weights are there.
const START_LIMIT: Duration = Duration::from_secs(3600);
/// Longest time that a rank waits for another one that lives, unless a step may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A division with its processes, which are started anew for each executor.
#[derive(Debug)]
pub struct Ranks {
    division: Division,
    /// Processes that have loaded their parts.
    started: Option<RankProcesses>,
}

impl Ranks {
    /// A division whose processes were started already.
    pub fn new(division: Division, started: RankProcesses) -> Self {
        Self { division, started: Some(started) }
    }

    /// An executor over the processes, which are started again if another executor ended them.
    ///
    /// # Errors
    /// When they cannot be started, or have no memory.
    pub fn executor(
        &mut self,
        model: &LoadedModel,
        threads: &Arc<ThreadPool>,
        options: &RunnerOptions,
    ) -> Result<Box<dyn Executor>, ExecutorError> {
        let again = || {
            let mut started = self.division.start()?;
            started.wait_until_loaded()?;
            tracing::info!("the processes of the model were started again");
            anyhow::Ok(started)
        };
        let started = self.started.take().map_or_else(again, Ok);
        let started = started.map_err(|error| ExecutorError::PeerLost(format!("{error:#}")))?;
        started.into_executor(model, threads, options)
    }

    /// Keeps this thread, and those that it starts, on the cores of rank 0.
    pub fn bind(&self) {
        self.division.bind();
    }
}

/// How a model is divided, and where its parts run.
#[derive(Debug, Clone)]
pub struct Division {
    grid: Grid,
    places: Vec<Place>,
    /// Path of the model, or name of a built-in one.
    model: String,
    section: ModelSection,
    patience: Duration,
}

impl Division {
    /// The division that the settings ask for; `None`: one process has the whole model.
    ///
    /// # Errors
    /// When settings contradict each other.
    pub fn of(section: &ModelSection, engine: &EngineSection, source: &ModelSource) -> Result<Option<Self>> {
        let Some(grid) = grid(section)? else { return Ok(None) };
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
        let places = places(grid.n_all(), section.n_threads);
        Ok(Some(Self { grid, places, model, section: section.clone(), patience }))
    }

    /// The arrangement of the processes.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Compute threads of rank 0.
    pub fn n_threads(&self) -> usize {
        self.places[0].n_threads
    }

    /// Keeps this thread, and those that it starts, on the cores of rank 0.
    fn bind(&self) {
        if !self.places[0].cores.is_empty() {
            bind_to(&self.places[0].cores);
        }
    }

    /// Runs something on the cores of rank 0.
    pub fn on_own_cores<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = Cores::allowed().logical;
        self.bind();
        let result = run();
        bind_to(&before);
        result
    }

    /// Starts the other processes, which load their parts.
    ///
    /// # Errors
    /// When the system refuses memory or processes.
    pub fn start(&self) -> Result<RankProcesses> {
        let host = SharedHost::create(self.grid.n_all(), &self.grid.groups())?;
        let membership = host.join(0)?;
        let mut all = membership.all();
        let children = Children::start(self.grid, &host)?;
        for rank in 1..self.grid.n_all() {
            let mut setup = Setup::new(&self.section, self.model.clone(), self.patience.as_millis() as u64);
            (setup.cores, setup.n_threads) = (self.places[rank].cores.clone(), self.places[rank].n_threads);
            send(&mut all, rank, &setup, Deadline::within(START_LIMIT))?;
        }
        let links = links(&membership, self.grid, 0, self.patience);
        let (grid, patience) = (self.grid, self.patience);
        Ok(RankProcesses { children, membership, all, links, grid, patience, loaded: Vec::new() })
    }

    /// The processes, once they have loaded their parts and are expected to be faster than one. `own_bytes`
    /// are those of this process's weights.
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

    /// Measures memory and exchanges, logs what is expected of the division, and refuses one that is expected
    /// to be slower than one process, unless it is forced.
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
            "transport: shared memory ({sum}sent in {:.1} µs, medians); expected for one user: {:.2} ms a token, \
             {:.1} % of it in communication; in one process {:.2} ms",
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
            "divided over {} processes of this host ({n_ranks} for each layer, {n_stages} {}), with {} threads",
            self.grid.n_all(),
            if n_stages == 1 { "stage" } else { "stages" },
            threads.join(" + "),
        )
    }
}

/// The other processes of a model, and rank 0's place among them.
#[derive(Debug)]
pub struct RankProcesses {
    /// First, so that the processes end before the memory is left.
    children: Children,
    membership: Membership,
    all: SharedCommunicator,
    links: RankLinks,
    grid: Grid,
    patience: Duration,
    loaded: Vec<Loaded>,
}

impl RankProcesses {
    /// Waits until all of them have loaded their parts.
    ///
    /// # Errors
    /// When one could not, or ended.
    pub fn wait_until_loaded(&mut self) -> Result<()> {
        self.loaded.clear();
        for rank in 1..self.grid.n_all() {
            let answer: Answer<Loaded> = receive(&mut self.all, rank, Deadline::within(START_LIMIT))?;
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

    /// Bytes that a slot of recurrent state takes in all of them.
    pub fn state_bytes(&self) -> u64 {
        self.loaded.iter().map(|loaded| loaded.state_bytes).sum()
    }

    /// Measures what all ranks can do at the same time. `own_bytes` are those of this rank's weights.
    fn measure(
        &mut self,
        threads: &Arc<ThreadPool>,
        n_elements: usize,
        own_bytes: u64,
    ) -> Result<Measurements> {
        let others = 1..self.grid.n_all();
        for rank in others.clone() {
            send(&mut self.all, rank, &Order::Measure { n_elements }, Deadline::within(self.patience))?;
        }
        let mut bytes_per_s = vec![probe::read(&mut self.all, threads)?];
        let sum = probe::sum(&mut self.links, n_elements);
        let message = probe::ping(&mut self.all, n_elements)?;
        for rank in others {
            bytes_per_s.push(receive(&mut self.all, rank, Deadline::within(self.patience))?);
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
    ) -> Result<Box<dyn Executor>, ExecutorError> {
        let lost = |error: anyhow::Error| ExecutorError::PeerLost(format!("{error:#}"));
        let by = || Deadline::within(START_LIMIT);
        let others = 1..self.grid.n_all();
        for rank in others.clone() {
            let order = Order::Run(Limits::of(&options.limits));
            send(&mut self.all, rank, &order, by()).map_err(lost)?;
        }
        let links = std::mem::take(&mut self.links);
        let runner = model.rank_runner(threads, options, links);
        let runner = runner.map_err(|error| ExecutorError::Device(error.to_string()))?;
        for rank in others {
            let answer: Answer<()> = receive(&mut self.all, rank, by()).map_err(lost)?;
            answer.map_err(|reason| ExecutorError::Device(format!("rank {rank}: {reason}")))?;
        }
        let Self { children, membership, all, patience, .. } = self;
        Ok(Box::new(Leader::new(runner, Box::new(all), patience, Box::new((children, membership)))))
    }
}

/// Connections of a rank with the others.
fn links(membership: &Membership, grid: Grid, rank: usize, patience: Duration) -> RankLinks {
    let [of_layers, of_stages] = grid.groups_of(rank).map(|group_idx| membership.group(group_idx + 1));
    let boxed = |ranks: SharedCommunicator| -> Box<dyn Communicator> { Box::new(ranks) };
    RankLinks {
        layers: of_layers.filter(|_| grid.n_ranks > 1).map(|ranks| RankGroup::new(boxed(ranks), patience)),
        stages: of_stages.filter(|_| grid.n_stages > 1).map(|ranks| StageLinks::new(boxed(ranks), patience)),
    }
}
