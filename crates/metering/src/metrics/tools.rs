//! Counters of calls of tools, by names that the operator has chosen or approved. Does not call them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Label of the servers that requests name. No server of the operator can have this name.
const OF_REQUESTS: &str = "(request)";
/// Label of tools that have no label of their own.
const OTHER: &str = "(other)";
/// Maximum number of tools with labels of their own.
const MAX_TOOLS: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    server: String,
    tool: String,
    outcome: &'static str,
}

/// Counters of calls of tools, shared by clones.
#[derive(Debug, Clone)]
pub struct ToolMetrics {
    calls: Family<Labels, Counter>,
    /// Servers and tools that have labels of their own.
    known: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl ToolMetrics {
    /// Registers the counters at a registry.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self { calls: Family::default(), known: Arc::default() };
        let help = "Calls of tools that the gateway made, by server, tool and outcome";
        registry.register("throng_tool_calls", help, this.calls.clone());
        this
    }

    /// Counts a call of this server of the operator and this tool; `None` for a server that a request names.
    pub fn called(&self, tool: Option<(&str, &str)>, outcome: &'static str) {
        let (server, tool) = match tool {
            Some((server, tool)) if self.has_label(server, tool) => (server, tool),
            Some((server, _)) => (server, OTHER),
            None => (OF_REQUESTS, OTHER),
        };
        let labels = Labels { server: server.to_owned(), tool: tool.to_owned(), outcome };
        self.calls.get_or_create(&labels).inc();
    }

    /// Whether a tool has a label of its own; gives it one while there are few.
    fn has_label(&self, server: &str, tool: &str) -> bool {
        let named = (server.to_owned(), tool.to_owned());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.contains(&named) || known.len() < MAX_TOOLS && known.insert(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_never_those_of_clients() {
        let mut registry = Registry::default();
        let metrics = ToolMetrics::register(&mut registry);
        for n in 0..MAX_TOOLS + 5 {
            metrics.called(Some(("files", &format!("tool{n}"))), "ok");
        }
        metrics.called(Some(("files", "tool0")), "timeout");
        metrics.called(None, "ok");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let line = |labels: &str| format!("throng_tool_calls_total{{{labels}}}");
        for (labels, n) in [
            (r#"server="files",tool="tool0",outcome="timeout""#, 1),
            (r#"server="files",tool="(other)",outcome="ok""#, 5),
            (r#"server="(request)",tool="(other)",outcome="ok""#, 1),
        ] {
            assert!(text.contains(&format!("{} {n}\n", line(labels))), "{labels}: {text}");
        }
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), MAX_TOOLS + 3);
    }
}
