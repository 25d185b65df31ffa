//! State that all requests share: configuration, models, keys, metrics. Does not know HTTP.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use throng_api::{ApiError, ImageHosts};
use throng_core::fleet::health::State as Health;
use throng_fleet::replica::{FleetRecording, Link, Links, Replica, Replicas, Status};
use throng_fleet::upstream::{UpstreamModel, UpstreamModels, UpstreamReplica};
use throng_http::Phase;
use throng_http::memory::MemoryBudget;
use throng_state::responses::Responses;
use throng_store::{AuditEvent, now_unix_s};
use tokio::sync::{Notify, watch};

use crate::aliases::Aliases;
use crate::awaited::FleetMembers;
use crate::config::GatewayConfig;
use crate::generation::{AnswerWriting, TokenizationQueue};
use crate::limits::RateLimits;
use crate::loading::Progress;
use crate::moderation::Moderation;
use crate::on_demand::{OnDemandModels, Serving};
use crate::plan_page::PlanPage;
use crate::policy::Policy;
use crate::router::{Route, Router};
use crate::served_model::{ModelEntry, ServedModel};
use crate::upstream;
use throng_auth::{ApiKeys, IssuerKeys, StoredKeys, Tenant};
use throng_cache::{DiskTier, ResponseCache, SemanticCache};
use throng_fetch::RemoteImages;
use throng_http::retry_after::retry_after_s;
use throng_metering::HeldBytes;
use throng_metering::ledger::{Audited, Ledger, PriceTable};
use throng_metering::metrics::{
    AtScrape, EngineStatus, MemoryCollector, Metrics, ModelInfoLabels, ModelLabels, ModerationCounts,
    ProcessFacts, SharingStats,
};
use throng_metering::observation::{IgnoredLog, RecentRequests};
use throng_tools::Toolbox;

/// Maximum number of large answers that are written at a time.
const MAX_WRITTEN_ANSWERS: usize = 2;

/// State that stays the same when models are added to a server without any.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// Budget of memory held by all requests.
    pub memory: Arc<MemoryBudget>,
    /// Phase of the server on its way to its end.
    pub phase: watch::Sender<Phase>,
    /// Facts about the process for the metrics.
    pub process: ProcessFacts,
    /// Keys of the database, if there is one.
    pub keys: Option<StoredKeys>,
    /// Keys of the token issuer, if there is one.
    pub issuer_keys: Option<IssuerKeys>,
    /// Usage of the keys' limits.
    pub limits: Arc<RateLimits>,
    /// Moderation rules and classifier.
    pub moderation: Arc<Moderation>,
    /// Disk tier of the kept answers.
    pub disk: Option<Arc<DiskTier>>,
    /// Workers of the fleet; none if the models run in this process.
    pub workers: Arc<Links>,
    /// Models of upstream engines.
    pub upstreams: Arc<UpstreamModels>,
    /// Ledger of usage, if there is a database.
    pub ledger: Option<Arc<Ledger>>,
    /// The latest finished requests.
    pub recent: Arc<RecentRequests>,
    /// Notified when the operator drains the server.
    pub ending: Arc<Notify>,
    /// Models that are loaded and unloaded at run time.
    pub on_demand: Option<Arc<OnDemandModels>>,
    /// Tools that the gateway calls for clients, if some are configured.
    pub tools: Option<Arc<Toolbox>>,
    /// Hosts from which images are fetched.
    pub image_hosts: Arc<ImageHosts>,
    /// Recording of requests for workers, once there is one.
    pub recording: Arc<OnceLock<FleetRecording>>,
    /// Page of a capacity plan, once there is one.
    pub plan: Arc<OnceLock<PlanPage>>,
}

impl Shared {
    /// Creates the state for a server of this configuration.
    pub fn new(config: &GatewayConfig, process: ProcessFacts) -> Self {
        let memory = MemoryBudget::new(config.memory_limit_bytes());
        let keys = config.access.database.is_some().then(StoredKeys::default);
        let issuer_keys = config.access.tokens.is_some().then(IssuerKeys::default);
        let n_gateways = u64::from(config.access.redis_gateways.unwrap_or(1));
        let limits = Arc::new(RateLimits::new(config.access.redis.is_some().then_some(n_gateways)));
        // The gateway has checked the prices.
        let prices = PriceTable::new(&config.prices).unwrap_or_default();
        let ledger = keys.is_some().then(|| Arc::new(Ledger::new(prices)));
        if let Some(ledger) = &ledger {
            audit_rules(config, ledger);
        }
        let phase = watch::Sender::new(Phase::Serving);
        let recent = Arc::new(RecentRequests::new(config.observability.max_explained_requests));
        let (workers, upstreams, ending, moderation) = Default::default();
        let (disk, on_demand, tools, recording, plan, image_hosts) = Default::default();
        Self {
            memory,
            phase,
            process,
            keys,
            issuer_keys,
            limits,
            moderation,
            disk,
            workers,
            upstreams,
            ledger,
            recent,
            ending,
            on_demand,
            tools,
            image_hosts,
            recording,
            plan,
        }
    }
}

impl Shared {
    /// Workers and engines of the fleet.
    pub fn fleet_members(&self) -> FleetMembers {
        FleetMembers { workers: self.workers.clone(), engines: self.upstreams.clone() }
    }
}

/// Records the present residency rules in the audit.
fn audit_rules(config: &GatewayConfig, ledger: &Ledger) {
    for rule in &config.routing.residency {
        ledger.audit(&Audited {
            event: AuditEvent::Rule,
            request_id: "",
            organisation: &rule.organisation,
            model: "",
            permitted: &rule.regions.join(","),
            place: ["", ""],
            reason: "",
        });
    }
}

/// State of the sharing of limits, for the metrics.
fn sharing_of(limits: &Arc<RateLimits>) -> AtScrape<SharingStats> {
    let limits = limits.clone();
    AtScrape::new(move || limits.sharing().into_iter().collect())
}

/// Counts of texts that moderation has stopped, for the metrics.
fn counts_of(moderation: &Arc<Moderation>) -> AtScrape<ModerationCounts> {
    let moderation = moderation.clone();
    AtScrape::new(move || vec![moderation.counts()])
}

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct App {
    /// Configuration of the gateway.
    pub config: GatewayConfig,
    /// Keys, limits, ledger, moderation and kept answers.
    pub policy: Policy,
    /// Models and their replicas.
    pub models: Models,
    /// Bounds on the work for requests.
    pub work: Work,
    /// Counts and records of requests.
    pub observed: Observed,
    /// Phase of the server on its way to its end.
    pub lifecycle: Lifecycle,
    /// Tools that the gateway calls for clients, if some are configured.
    pub tools: Option<Arc<Toolbox>>,
    /// Hosts from which images are fetched.
    pub image_hosts: Arc<ImageHosts>,
    /// Fetches images at URLs, if the operator permits some hosts.
    pub remote_images: Option<RemoteImages>,
}

/// Models and their replicas.
#[derive(Debug)]
pub(crate) struct Models {
    /// The served models with their replicas.
    pub router: Arc<Router>,
    /// Models of upstream engines.
    pub upstreams: Arc<UpstreamModels>,
    /// Workers of the fleet.
    pub workers: Arc<Links>,
    /// Recording of requests for workers, once there is one.
    pub recording: Arc<OnceLock<FleetRecording>>,
    /// Models that are loaded and unloaded at run time.
    pub on_demand: Option<Arc<OnDemandModels>>,
    /// Model aliases.
    pub aliases: Aliases,
    /// Progress of loading; `None` once there are models.
    pub loading: Option<Arc<Progress>>,
}

impl Models {
    /// The models that are loaded at run time, if one of them may be absent.
    pub fn absent_models(&self) -> Option<&Arc<OnDemandModels>> {
        self.on_demand.as_ref().filter(|models| models.may_be_absent())
    }
}

/// Bounds on the work for requests.
#[derive(Debug)]
pub(crate) struct Work {
    /// Queue that bounds how many bodies are parsed and tokenized at a time.
    pub turns: TokenizationQueue,
    /// Settings for writing whole answers.
    pub writing: AnswerWriting,
    /// Budget of memory held by all requests.
    pub memory: Arc<MemoryBudget>,
}

/// Counts and records of requests.
#[derive(Debug)]
pub(crate) struct Observed {
    /// Metrics of the gateway.
    pub metrics: Metrics,
    /// The latest finished requests.
    pub recent: Arc<RecentRequests>,
    /// Page of a capacity plan, once there is one.
    pub plan: Arc<OnceLock<PlanPage>>,
    /// Log of parameters without effect.
    pub ignored: IgnoredLog,
}

/// Phase of the server on its way to its end.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// Present phase of the server.
    pub phase: watch::Sender<Phase>,
    /// Notified when the operator drains the server.
    pub ending: Arc<Notify>,
    /// Start of the server in seconds since the epoch; the `created` of every model.
    pub started_unix_s: u64,
}

impl App {
    /// Creates the state with models, or without while they are `loading`.
    pub fn new(
        config: GatewayConfig,
        models: Vec<ServedModel>,
        shared: Shared,
        loading: Option<Arc<Progress>>,
    ) -> Self {
        let Shared {
            memory,
            phase,
            process,
            keys,
            issuer_keys,
            limits,
            moderation,
            disk,
            workers,
            upstreams,
            ledger,
            recent,
            ending,
            on_demand,
            tools,
            image_hosts,
            recording,
            plan,
        } = shared;
        let members = FleetMembers { workers: workers.clone(), engines: upstreams.clone() };
        let router = Arc::new(Router::of_fleet(members));
        let cache = response_cache(&config, disk);
        let [of_replicas, of_models, of_scales, of_memory] = [(); 4].map(|()| router.clone());
        let (of_engines, of_workers) = (upstreams.clone(), workers.clone());
        let metrics = Metrics::new(
            AtScrape::new(move || of_replicas.labelled_replicas()),
            (
                AtScrape::new(move || of_models.routes().iter().map(model_info).collect()),
                AtScrape::new(move || [engines(&of_engines), statuses(&of_workers)].concat()),
                AtScrape::new(move || scales(&of_scales)),
            ),
            memory_of(of_memory, memory.clone()),
            (&process, ledger.clone(), sharing_of(&limits)),
            cache.clone(),
            counts_of(&moderation),
        );
        serve_local(&router, models, &metrics, &config);
        let keys = ApiKeys::new(&config.access.api_keys, keys)
            .with_operator(config.access.admin_key.as_ref())
            .with_tokens(config.access.tokens.as_ref().zip(issuer_keys));
        let turns = TokenizationQueue::new(
            config.api.max_concurrent_tokenizations,
            config.api.max_queued_tokenizations,
            Duration::from_secs(config.api.tokenization_timeout_s),
        );
        let writing = AnswerWriting::new(MAX_WRITTEN_ANSWERS, config.api.max_answer_bytes, memory.clone());
        let aliases = Aliases::new(&config.routing.aliases, &metrics.aliases);
        Self {
            policy: Policy { keys, limits, ledger, moderation, cache, recent: Arc::default() },
            models: Models { router, upstreams, workers, recording, on_demand, aliases, loading },
            observed: Observed { metrics, recent, plan, ignored: IgnoredLog::default() },
            lifecycle: Lifecycle { phase, ending, started_unix_s: now_unix_s() },
            tools,
            remote_images: RemoteImages::of(&image_hosts, &memory),
            image_hosts,
            work: Work { turns, writing, memory },
            config,
        }
    }

    /// Adds a model that workers compute.
    pub fn add_remote(&self, served: ServedModel, first: Arc<dyn Replica>) -> Route {
        let counters = self.observed.metrics.of_model(&ModelLabels::of_model(served.id()));
        let recording = self.models.recording.get().cloned();
        let replicas = Replicas::remote(&self.config.routing.settings()).recorded(recording);
        replicas.add(first);
        let route = Route::new(Arc::new(ModelEntry::new(served, counters, &self.config)), replicas);
        self.models.router.add(route.clone());
        route
    }

    /// Whether a model may answer, now or later, without a restart of the process.
    pub fn is_live(&self) -> bool {
        let routes = self.models.router.routes();
        routes.is_empty()
            || !self.models.upstreams.now().is_empty()
            || routes.iter().any(|route| route.status() != Status::Lost)
    }

    /// Parts of the state that answers of upstream engines need.
    ///
    /// # Errors
    /// 503 while the server takes no new requests.
    pub fn upstream_setting(&self) -> Result<upstream::Setting<'_>, ApiError> {
        if self.is_draining() {
            return Err(ApiError::shutting_down(retry_after_s()));
        }
        Ok(upstream::Setting {
            config: &self.config,
            turns: &self.work.turns,
            metrics: &self.observed.metrics,
            limits: &self.policy.limits,
            ledger: self.policy.ledger.as_ref(),
            memory: &self.work.memory,
            phase: &self.lifecycle.phase,
        })
    }

    /// The kept responses and conversations, if there is a database; those of this key's holder are kept for
    /// the time that its rules set.
    pub fn responses(&self, key_holder: &Tenant) -> Option<Responses> {
        let of_key = self.config.state.retention_s(key_holder.key.as_deref());
        let retention_s = self.config.api.response_retention_s.map_or(of_key, |s| (s > 0).then_some(s));
        self.policy.responses(retention_s.map(Duration::from_secs))
    }

    /// Whether new requests are refused because the server is ending.
    pub fn is_draining(&self) -> bool {
        *self.lifecycle.phase.borrow() >= Phase::Draining
    }
}

impl Serving for App {
    fn router(&self) -> &Router {
        &self.models.router
    }

    fn add(&self, served: ServedModel) -> Result<HeldBytes, String> {
        let held = served.held;
        if let Some(name) = served.names.iter().find(|name| self.models.router.get(name).is_some()) {
            return Err(format!("another model is named {name}"));
        }
        serve_local(&self.models.router, vec![served], &self.observed.metrics, &self.config);
        Ok(held)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.config.server.shutdown_timeout_s)
    }
}

fn response_cache(config: &GatewayConfig, disk: Option<Arc<DiskTier>>) -> Arc<ResponseCache> {
    let semantic = config.semantic_cache.clone().map(SemanticCache::new);
    Arc::new(ResponseCache::new(config.response_cache.max_memory_bytes, disk, semantic.map(Arc::new)))
}

/// Adds the models that engines of this process compute.
fn serve_local(router: &Router, models: Vec<ServedModel>, metrics: &Metrics, config: &GatewayConfig) {
    for served in models {
        let counters = metrics.of_model(&ModelLabels::of_model(served.id()));
        let replicas = Replicas::local(served.replicas(), &config.routing.settings());
        router.add(Route::new(Arc::new(ModelEntry::new(served, counters, config)), replicas));
    }
}

/// Collector of the memory held for requests and by models.
fn memory_of(router: Arc<Router>, budget: Arc<MemoryBudget>) -> MemoryCollector {
    let models = move || router.routes().iter().map(|route| route.model.served.held).collect();
    MemoryCollector::new(budget, AtScrape::new(models))
}

fn model_info(route: &Route) -> ModelInfoLabels {
    let model = &route.model.served;
    let (model_name, root) = (model.id().to_owned(), model.root.clone());
    ModelInfoLabels { model_name, root, max_model_len: model.max_model_len }
}

/// Names of the models that workers compute, with the desired number of workers.
fn decided(router: &Router) -> Vec<(String, u32)> {
    let routes = router.routes();
    let remote = routes.iter().map(|route| (route, &route.model)).filter(|(_, model)| model.is_remote());
    let decide = |(route, model): (&Route, &Arc<ModelEntry>)| {
        (model.served.id().to_owned(), model.scale.decide(&route.replicas().now(), &model.overload))
    };
    remote.map(decide).collect()
}

fn scales(router: &Router) -> Vec<(ModelLabels, u32)> {
    decided(router).iter().map(|(id, n)| (ModelLabels::of_model(id), *n)).collect()
}

fn engines(models: &UpstreamModels) -> Vec<EngineStatus> {
    let of_model = |model: &Arc<UpstreamModel>| {
        let status = |replica: Arc<UpstreamReplica>| EngineStatus {
            model_name: model.id().to_owned(),
            replica: replica.upstream.name.clone(),
            state: model.dispatcher.state(replica.id).0,
            n_running: model.dispatcher.n_running(replica.id),
        };
        model.replicas().into_iter().map(status).collect::<Vec<_>>()
    };
    models.now().iter().flat_map(of_model).collect()
}

fn statuses(workers: &Links) -> Vec<EngineStatus> {
    let status = |link: &Arc<Link>| {
        let report = link.report();
        Some(EngineStatus {
            model_name: report.names.first()?.clone(),
            replica: link.endpoint.label(),
            // Without a connection it must begin anew.
            state: report.health.unwrap_or(Health::Starting),
            n_running: link.n_own(),
        })
    };
    workers.now().iter().filter_map(status).collect()
}
