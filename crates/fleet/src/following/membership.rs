//! Assigns workers to models: workers with the same model join one route, and leave it when they are no
//! longer listed. Does not manage connections.

use std::sync::Arc;

use throng_core::fleet::routing::Region;
use throng_wire::Description;
use tokio::sync::Mutex;

use super::artifacts::fetch_all;
use super::models::{FleetModels, RemoteModel};
use crate::replica::{Connection, Identity, Link, RemoteReplica, Replica};

/// Maximum number of models of a gateway's workers.
const MAX_MODELS: usize = 256;

/// Models of the workers, each with the description of its first worker.
#[derive(Debug)]
pub(super) struct Membership {
    gateway: Arc<dyn FleetModels>,
    models: Mutex<Vec<FleetModel>>,
}

#[derive(Debug)]
struct FleetModel {
    description: Description,
    served: Box<dyn RemoteModel>,
    members: Vec<Member>,
}

/// A worker of a model.
#[derive(Debug)]
struct Member {
    link: Arc<Link>,
    identity: Identity,
    replica: Arc<dyn Replica>,
}

impl Member {
    fn new(link: &Arc<Link>, identity: &Identity) -> Self {
        let replica = Arc::new(RemoteReplica::new(link.clone(), identity.clone()));
        Self { link: link.clone(), identity: identity.clone(), replica }
    }
}

impl Membership {
    /// Creates a membership without models.
    pub fn new(gateway: Arc<dyn FleetModels>) -> Self {
        Self { gateway, models: Mutex::default() }
    }

    /// Lets a worker serve the model that it describes. If no other worker has it, its artifacts are
    /// fetched from this worker.
    ///
    /// # Errors
    /// When the model differs from that of the same name, its artifacts cannot be used, or the worker's
    /// region is unknown.
    pub async fn join(
        &self,
        link: &Arc<Link>,
        connection: &Connection,
        description: &Description,
    ) -> Result<Identity, String> {
        let name = description.names.first().ok_or("its model has no name")?;
        let region = link.endpoint.region.clone().or(description.region.as_deref().map(Region::from));
        if let Some(region) = &region {
            let checked = self.gateway.check_region(region);
            checked.map_err(|fault| format!("its region {fault}"))?;
        }
        let identity = Identity { model: name.as_str().into(), region, role: description.role };
        let mut models = self.models.lock().await;
        if link.is_leaving() {
            return Err("it is no longer listed".to_owned());
        }
        if let Some(model) = models.iter_mut().find(|model| model.description.names[0] == *name) {
            check_equal(&model.description, description)?;
            model.served.worker_joined(&description.fingerprint);
            if model.description.fingerprint != description.fingerprint {
                tracing::warn!(
                    worker = link.endpoint.label(),
                    model = name,
                    fingerprint = description.fingerprint,
                    first = model.description.fingerprint,
                    "a worker's answers may differ in bits from those of the model's first worker"
                );
            }
            model.let_in(link, &identity);
            return Ok(identity);
        }
        if models.len() >= MAX_MODELS {
            return Err(format!("there are {MAX_MODELS} models already"));
        }
        let artifacts = fetch_all(connection, description).await?;
        let member = Member::new(link, &identity);
        let (description, first) = (description.clone(), member.replica.clone());
        let served = self.gateway.add_remote(description.clone(), artifacts, first).await?;
        served.worker_joined(&description.fingerprint);
        models.push(FleetModel { description, served, members: vec![member] });
        Ok(identity)
    }

    /// Stops new requests to a worker; its running requests go on.
    pub async fn leave(&self, link: &Arc<Link>) {
        link.set_leaving();
        for model in self.models.lock().await.iter_mut() {
            model.let_go(link);
        }
    }
}

impl FleetModel {
    /// Sends requests of the model to a worker, in place of the same worker's membership in another region.
    fn let_in(&mut self, link: &Arc<Link>, identity: &Identity) {
        let is_same = |member: &Member| Arc::ptr_eq(&member.link, link) && member.identity == *identity;
        if !self.members.iter().any(is_same) {
            self.let_go(link);
            let member = Member::new(link, identity);
            self.served.replicas().add(member.replica.clone());
            self.members.push(member);
        }
    }

    /// Stops new requests of the model to a worker.
    fn let_go(&mut self, link: &Arc<Link>) {
        let left = self.members.extract_if(.., |member| Arc::ptr_eq(&member.link, link));
        left.for_each(|member| self.served.replicas().remove(&member.replica));
    }
}

/// Checks that prompts and the limits for checking them are equal for all workers of a model. The
/// fingerprint shows whether outputs are bit-identical.
fn check_equal(first: &Description, other: &Description) -> Result<(), String> {
    let unequal = [
        ("names", first.names != other.names),
        ("vocabulary", first.artifacts != other.artifacts || first.vocabulary_size != other.vocabulary_size),
        ("context", first.context_tokens != other.context_tokens),
        ("longest sequence", other.max_model_len < first.max_model_len),
        ("end tokens", first.eos_token_ids != other.eos_token_ids),
        ("defaults", first.defaults != other.defaults),
        ("template defaults", first.chat_template_defaults != other.chat_template_defaults),
        ("tool call format", first.tool_call_parser != other.tool_call_parser),
        ("vectors", first.pooling != other.pooling),
        ("reasoning format", first.reasoning_parser != other.reasoning_parser),
    ];
    let fields: Vec<&str> =
        unequal.iter().filter(|(_, is_unequal)| *is_unequal).map(|(name, _)| *name).collect();
    if fields.is_empty() {
        return Ok(());
    }
    let name = &first.names[0];
    Err(format!("it differs from the first worker of {name} in: {}", fields.join(", ")))
}
