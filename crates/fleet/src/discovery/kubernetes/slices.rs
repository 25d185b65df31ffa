//! The EndpointSlices of a service (`discovery.k8s.io/v1`), from a list and the events of a watch, and the
//! workers in them. Does not fetch them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Service;
use crate::discovery::Found;
use crate::replica::WorkerAddress;

/// Maximum number of slices of a service; Kubernetes puts up to 100 endpoints in a slice.
const MAX_SLICES: usize = 1024;

/// The slices of a service.
#[derive(Debug, Default)]
pub(super) struct Slices {
    by_name: BTreeMap<String, Slice>,
    version: String,
}

/// Outcome of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The event was applied.
    Applied,
    /// The server has dropped earlier events: list again.
    Gone,
}

#[derive(Debug, Deserialize)]
struct List {
    metadata: ListMetadata,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slice {
    metadata: Metadata,
    #[serde(default)]
    address_type: String,
    #[serde(default)]
    ports: Option<Vec<Port>>,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<u16>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    /// Absent counts as ready, as documented in the API.
    #[serde(default)]
    ready: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl Slices {
    /// Adds a page of a list. Returns the token of the next page.
    ///
    /// # Errors
    /// When it is not a list of EndpointSlices.
    pub fn add_page(&mut self, page: impl AsRef<[u8]>) -> Result<Option<String>, String> {
        let list: List = serde_json::from_slice(page.as_ref()).map_err(unreadable)?;
        self.version = list.metadata.resource_version;
        list.items.into_iter().try_for_each(|slice| self.insert(slice))?;
        // Page tokens are URL-safe base64.
        let token = list.metadata.token;
        if token.contains(|c: char| !(c.is_ascii_alphanumeric() || "-_.=".contains(c))) {
            return Err("the API server names a page in a way that is not known".to_owned());
        }
        Ok(Some(token).filter(|token| !token.is_empty()))
    }

    /// Applies an event of a watch.
    ///
    /// # Errors
    /// When the line is not an event.
    pub fn apply(&mut self, line: &[u8]) -> Result<Event, String> {
        let event: WatchEvent<'_> = serde_json::from_slice(line).map_err(unreadable)?;
        if event.kind == "ERROR" {
            let status: Status = serde_json::from_str(event.object.get()).map_err(unreadable)?;
            return if status.code == 410 { Ok(Event::Gone) } else { Err(status.message) };
        }
        let slice: Slice = serde_json::from_str(event.object.get()).map_err(unreadable)?;
        if !slice.metadata.resource_version.is_empty() {
            self.version.clone_from(&slice.metadata.resource_version);
        }
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => self.insert(slice)?,
            "DELETED" => drop(self.by_name.remove(&slice.metadata.name)),
            // Bookmarks contain only a resource version.
            _ => {}
        }
        Ok(Event::Applied)
    }

    fn insert(&mut self, slice: Slice) -> Result<(), String> {
        if self.by_name.len() >= MAX_SLICES && !self.by_name.contains_key(&slice.metadata.name) {
            return Err(format!("the service has more than {MAX_SLICES} slices"));
        }
        self.by_name.insert(slice.metadata.name.clone(), slice);
        Ok(())
    }

    /// The resource version after the last event.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The ready endpoints, ordered by address and without duplicates.
    pub fn found(&self, service: &Service) -> Vec<Found> {
        let of_slice = |slice: &Slice| {
            let ports = slice.ports.as_deref().unwrap_or_default();
            let named = ports.iter().find(|port| port.name.as_deref() == Some(&service.port));
            let port =
                service.port.parse().ok().or(named.and_then(|port| port.port)).filter(|&port| port > 0);
            let endpoints = slice.endpoints.as_deref().unwrap_or_default().iter();
            let ready = endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false));
            let hosts = ready.filter_map(|endpoint| endpoint.addresses.first().cloned());
            let hosts = hosts.filter(|_| matches!(slice.address_type.as_str(), "IPv4" | "IPv6"));
            let found = |(host, port)| Found {
                address: WorkerAddress::new(host, port, service.is_encrypted),
                server_name: Some(format!("{}.{}.svc", service.name, service.namespace)),
            };
            hosts.zip(port.into_iter().cycle()).map(found).collect::<Vec<_>>()
        };
        let mut found: Vec<Found> = self.by_name.values().flat_map(of_slice).collect();
        found.sort_by(|one, other| one.address.cmp(&other.address));
        found.dedup();
        found
    }
}

fn unreadable(error: serde_json::Error) -> String {
    format!("the API server's answer cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, version: u32, endpoints: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}},"addressType":"IPv4",
                "ports":[{{"name":"engine","port":9000,"protocol":"TCP"}}],"endpoints":[{endpoints}]}}"#
        )
    }

    fn urls(slices: &Slices, port: &str) -> Vec<String> {
        let service = Service::parse(&format!("default/throng:{port}"), false).expect("a service");
        slices.found(&service).iter().map(|found| found.address.to_string()).collect()
    }

    #[test]
    fn pages_and_events_are_followed() {
        let mut slices = Slices::default();
        let (one, two) =
            (r#"{"addresses":["10.0.0.1"]}"#, r#"{"addresses":["10.0.0.2"],"conditions":{"ready":true}}"#);
        let page = format!(
            r#"{{"metadata":{{"resourceVersion":"5","continue":"abc"}},"items":[{}]}}"#,
            slice("a", 1, one)
        );
        assert_eq!(slices.add_page(page), Ok(Some("abc".to_owned())));
        let page = format!(r#"{{"metadata":{{"resourceVersion":"5"}},"items":[{}]}}"#, slice("b", 2, two));
        assert_eq!(slices.add_page(page), Ok(None));
        assert_eq!(urls(&slices, "engine"), ["throng://10.0.0.1:9000", "throng://10.0.0.2:9000"]);
        assert_eq!(urls(&slices, "1"), ["throng://10.0.0.1:1", "throng://10.0.0.2:1"]);
        assert!(urls(&slices, "other").is_empty());
        let ending =
            r#"{"addresses":["10.0.0.2"],"conditions":{"ready":false,"serving":true,"terminating":true}}"#;
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, slice("b", 7, ending));
        assert_eq!(slices.apply(event.as_bytes()), Ok(Event::Applied));
        assert_eq!((urls(&slices, "engine").len(), slices.version()), (1, "7"));
        let event = format!(r#"{{"type":"DELETED","object":{}}}"#, slice("a", 8, one));
        assert_eq!(slices.apply(event.as_bytes()), Ok(Event::Applied));
        assert!(urls(&slices, "engine").is_empty());
        let bookmark =
            r#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"12"}}}"#;
        assert_eq!(slices.apply(bookmark.as_bytes()), Ok(Event::Applied));
        assert_eq!(slices.version(), "12");
        let gone =
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}"#;
        assert_eq!(slices.apply(gone.as_bytes()), Ok(Event::Gone));
        assert!(slices.apply(b"{").is_err());
    }
}
