//! Workers among the ready endpoints of a Kubernetes service. Lists its EndpointSlices and then watches them,
//! as Kubernetes' API concepts describe ("Efficient detection of changes"). Connects to the API server over
//! HTTP with the pod's service account. Does not know workers.

mod api;
mod slices;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{Teller, Trouble};
use api::{Api, ApiFault};
use slices::{Event, Slices};

/// Folder of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Pause before a new watch after one that ended by itself.
const PAUSE: Duration = Duration::from_millis(200);

/// Address and credentials of the API server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesApi {
    /// URL, such as `https://10.0.0.1:443`.
    pub url: String,
    /// File with the service account's token. Read for each request, since tokens expire.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// File of the certificate authorities for the server's certificate.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl KubernetesApi {
    /// The API server in a pod's environment variables `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`.
    pub fn of_pod(host: &str, port: &str) -> Self {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let file = |name: &str| Some(PathBuf::from(SERVICE_ACCOUNT).join(name));
        Self { url: format!("https://{host}:{port}"), token_file: file("token"), ca_file: file("ca.crt") }
    }
}

/// A service whose endpoints are workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    namespace: String,
    name: String,
    /// Number or name of the workers' port.
    port: String,
    is_encrypted: bool,
}

impl Service {
    /// Reads `NAMESPACE/SERVICE:PORT`.
    pub fn parse(text: &str, is_encrypted: bool) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (name, port) = rest.rsplit_once(':')?;
        // RFC 1123 labels need no escaping in paths and queries.
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        let all = [namespace, name, port];
        all.iter().all(|label| is_label(label)).then(|| {
            let [namespace, name, port] = all.map(str::to_owned);
            Self { namespace, name, port, is_encrypted }
        })
    }

    fn path(&self) -> String {
        let Self { namespace, name, .. } = self;
        format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
        )
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

pub(super) async fn follow(service: Service, api: Option<KubernetesApi>, teller: Teller) {
    let mut trouble = Trouble::default();
    loop {
        let reason = match &api {
            None => "this is no pod, and kubernetes_api does not say where the API server is".to_owned(),
            Some(api) => match list_and_watch(&service, api, &teller, &mut trouble).await {
                Ok(()) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(reason) => reason,
            },
        };
        tokio::time::sleep(teller.failed(&mut trouble, reason)).await;
    }
}

/// Lists once and watches until the API server has dropped the events after the list.
async fn list_and_watch(
    service: &Service,
    api: &KubernetesApi,
    teller: &Teller,
    trouble: &mut Trouble,
) -> Result<(), String> {
    let api = Api::new(api)?;
    let mut slices = Slices::default();
    let path = service.path();
    let mut token: Option<String> = None;
    loop {
        let page = token.as_deref().map_or(String::new(), |token| format!("&continue={token}"));
        let list = match api.list(&format!("{path}&limit=500{page}")).await {
            Err(ApiFault::Gone) if token.is_some() => return Ok(()),
            list => list.map_err(|fault| fault.to_string())?,
        };
        token = slices.add_page(list)?;
        if token.is_none() {
            break;
        }
    }
    *trouble = Trouble::default();
    let mut last = slices.found(service);
    teller.told(last.clone()).await;
    loop {
        let version = slices.version();
        let watched = format!(
            "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={version}",
            api::WATCH_S
        );
        let mut events = match api.watch(&watched).await {
            Err(ApiFault::Gone) => return Ok(()),
            events => events.map_err(|fault| fault.to_string())?,
        };
        while let Some(line) = events.next().await? {
            match slices.apply(&line)? {
                Event::Gone => return Ok(()),
                Event::Applied => {}
            }
            let found = slices.found(service);
            if found != last {
                teller.told(found.clone()).await;
                last = found;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
