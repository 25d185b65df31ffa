//! The workers and upstream engines of a gateway, as listed by sources. A task for each worker keeps a
//! connection to it and adds it to the route of its model once the worker has sent its description. Does not
//! know requests.

mod artifacts;
mod engine_config;
mod engines;
mod follow;
mod membership;
mod models;
mod replica_config;
mod roster;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Secret;
use crate::discovery::Source;
use crate::upstream::{self, Upstream};
use engine_config::EngineSettings;
use engines::{Engines, join_named, join_told};
use membership::Membership;
use replica_config::Credentials;
use roster::{MAX_REPLICAS, Roster, Serve, SourceState};
use workers::Workers;

pub use models::{FleetModels, RemoteModel};
pub use replica_config::{FleetError, ReplicaConfig};

/// Interval of checks whether the fleet has settled.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);

/// The workers and upstream engines of a gateway; they are followed until it is dropped.
#[derive(Debug)]
pub struct Fleet {
    _following: JoinSet<()>,
    gateway: Arc<dyn FleetModels>,
    n_replicas: usize,
    n_sources: usize,
}

impl Fleet {
    /// Follows these workers and engines; `gateway` serves their models as they appear. `default_token` is
    /// for workers without a token of their own.
    ///
    /// # Errors
    /// When an address, a region, a token or a certificate cannot be used, or there are too many.
    pub fn start(
        replicas: &[ReplicaConfig],
        default_token: Option<&Secret>,
        gateway: Arc<dyn FleetModels>,
    ) -> Result<Self, FleetError> {
        replicas.iter().try_for_each(|replica| replica.check_region(&*gateway))?;
        let Sorted { engines, finding, workers } = Sorted::of(replicas, default_token)?;
        let n_sources = workers.iter().filter(|(_, (source, _))| !source.is_static()).count() + finding.len();
        let mut following = JoinSet::new();
        let membership = Arc::new(Membership::new(gateway.clone()));
        follow_sources(Workers { membership, links: gateway.workers().clone() }, workers, &mut following);
        follow_engines(engines, finding, &gateway, &mut following);
        Ok(Self { _following: following, gateway, n_replicas: replicas.len() - n_sources, n_sources })
    }

    /// Checks replicas as [`Self::start`] does, except for their regions.
    ///
    /// # Errors
    /// Errors of [`Self::start`].
    pub fn check(replicas: &[ReplicaConfig], default_token: Option<&Secret>) -> Result<(), FleetError> {
        Sorted::of(replicas, default_token).map(drop)
    }

    /// Waits, for at most `limit`, until each known worker and engine has answered or failed once and a
    /// model is served.
    pub async fn settled(&self, limit: Duration) {
        let is_settled = || {
            let links = self.gateway.workers().now();
            links.iter().all(|link| link.was_tried()) && self.gateway.is_settled()
        };
        let settling = async {
            while !is_settled() {
                tokio::time::sleep(SETTLE_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(limit, settling).await;
    }

    /// Number of individually configured workers and engines, and number of sources.
    pub fn n_replicas(&self) -> (usize, usize) {
        (self.n_replicas, self.n_sources)
    }
}

/// A source of workers or engines, with the settings for all of its members.
type Finding<'a, Settings> = (&'a ReplicaConfig, (Source, Settings));

/// Replicas by their kinds, with parsed settings.
struct Sorted<'a> {
    engines: Vec<(Upstream, EngineSettings)>,
    /// Sources of engines.
    finding: Vec<Finding<'a, EngineSettings>>,
    /// Workers and sources of workers.
    workers: Vec<Finding<'a, Credentials>>,
}

impl<'a> Sorted<'a> {
    fn of(replicas: &'a [ReplicaConfig], default_token: Option<&Secret>) -> Result<Self, FleetError> {
        if replicas.len() > MAX_REPLICAS {
            return Err(FleetError::TooMany { max: MAX_REPLICAS });
        }
        let engines = replicas.iter().filter(|replica| replica.is_engine()).map(ReplicaConfig::engine);
        let engines = engines.collect::<Result<_, _>>()?;
        let finding = replicas.iter().filter(|replica| replica.tells_engines());
        let finding = finding.map(|replica| Ok((replica, replica.engines()?)));
        let finding = finding.collect::<Result<_, FleetError>>()?;
        let workers = replicas.iter().filter(|replica| !replica.is_engine() && !replica.tells_engines());
        let workers = workers.map(|replica| Ok((replica, replica.workers(default_token)?)));
        let workers: Vec<Finding<'_, Credentials>> = workers.collect::<Result<_, FleetError>>()?;
        check_distinct(&workers)?;
        Ok(Self { engines, finding, workers })
    }
}

/// Checks that no worker, source or name occurs twice.
fn check_distinct(workers: &[Finding<'_, Credentials>]) -> Result<(), FleetError> {
    for (i, (config, (source, _))) in workers.iter().enumerate() {
        if workers[..i].iter().any(|(_, (other, _))| other == source) {
            return Err(FleetError::Twice { url: source.to_string() });
        }
        let Some(name) = &config.name else { continue };
        if workers[..i].iter().any(|(other, _)| other.name.as_ref() == Some(name)) {
            return Err(FleetError::SameName { name: name.clone() });
        }
    }
    Ok(())
}

/// Follows the changes of all sources.
fn follow_sources<S>(service: S, finding: Vec<Finding<'_, S::Settings>>, following: &mut JoinSet<()>)
where
    S: Serve<Settings: Send, Key: Send + Sync> + Send + 'static,
{
    let (tell, told) = mpsc::channel(1);
    let mut sources = Vec::with_capacity(finding.len());
    for (idx, (config, (source, settings))) in finding.into_iter().enumerate() {
        let found = match source {
            Source::Address(address) => vec![address.into()],
            source => {
                following.spawn(source.follow(idx, config.kubernetes_api.clone(), tell.clone()));
                Vec::new()
            }
        };
        sources.push(SourceState { settings, found });
    }
    following.spawn(Roster::new(service, sources).run(told));
}

/// Follows the individually configured engines. Those with a configured model serve it at once; the others
/// are queried for their models.
fn follow_engines(
    engines: Vec<(Upstream, EngineSettings)>,
    finding: Vec<Finding<'_, EngineSettings>>,
    gateway: &Arc<dyn FleetModels>,
    following: &mut JoinSet<()>,
) {
    if engines.is_empty() && finding.is_empty() {
        return;
    }
    for (upstream, settings) in engines {
        let (gateway, upstream) = (gateway.clone(), Arc::new(upstream));
        if !join_named(&gateway, &settings, &upstream) {
            gateway.upstreams().set_idle(&upstream, true);
            following.spawn(async move { join_told(&gateway, &settings, &upstream).await });
        }
    }
    follow_sources(Engines(gateway.clone()), finding, following);
    following.spawn(upstream::probe(gateway.upstreams().clone()));
    following.spawn(upstream::measure(gateway.upstreams().clone()));
    following.spawn(upstream::watch(gateway.upstreams().clone()));
}
