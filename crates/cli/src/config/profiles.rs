//! Profiles: defaults for kinds of machines, as parts of a configuration file. The file and flags take
//! precedence.

use clap::ValueEnum;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::NOWHERE;
use crate::args::Profile;

/// A server for many clients, usually behind a load balancer. Idle connections stay open for 75 s, the
/// default: load balancers keep them for 60 s, and the side that sends requests must be the first to close.
pub const SERVICE: &str = "
[engine]
# A burst waits instead of being refused; the predicted wait below is its bound.
max_queued_requests = 8_192
# 4 bytes each: at most 128 MB.
max_queued_tokens = 32_000_000

[gateway.server]
# Clients keep connections open between requests. The limit of descriptors may allow fewer.
max_connections = 65_536
# Clients in a data center and load balancers send a head at once; only attackers send it slowly.
header_timeout_s = 5
# 1 GiB: bodies, prompts and answers of all these requests.
max_request_memory_bytes = 1_073_741_824

[gateway.api]
# Tokenizing comes before the engine's queue, whose length it should not limit.
max_queued_tokenizations = 4_096
# As long as the predicted wait below.
tokenization_timeout_s = 10

[gateway.overload]
# Early enough for a load balancer to try another server before its own timeout, usually 30 s or 60 s.
max_queue_wait_ms = 10_000

[gateway.observability]
# Some minutes of a busy server, a few KB each.
max_explained_requests = 8_192
";

/// A machine with little memory that serves a few clients.
pub const EDGE: &str = "
[engine]
# Activations of a step grow with its tokens.
max_batch_tokens = 128
# Each takes a row of logits: 0.6 MB with a vocabulary of 150,000.
max_batch_sequences = 8
# More would wait for minutes on a small machine.
max_queued_requests = 64
# Two prompts of 128k tokens.
max_queued_tokens = 262_144

[adapters]
max_loras = 4
# 256 MiB.
max_lora_memory_bytes = 268_435_456

[gateway.server]
# Each takes a few KB and a descriptor.
max_connections = 256
# Idle clients leave these few connections to others.
idle_timeout_s = 15
# 32 MiB, enough for several of the largest bodies and one of the largest answers.
max_request_memory_bytes = 33_554_432

[gateway.api]
# 1 MiB: a body takes up to eight times its bytes until it is tokenized.
max_body_bytes = 1_048_576
# 8 MiB: an answer that is not streamed is in memory as a whole.
max_answer_bytes = 8_388_608
# The other cores compute.
max_concurrent_tokenizations = 1
max_queued_tokenizations = 32

[gateway.observability]
# A few KB each.
max_explained_requests = 64
";

/// Adds the values of the flag's profile, or of the file's, where the file sets none.
pub(super) fn fill(root: &mut DeTable<'_>, flag: Option<Profile>) {
    let named = root.get("profile").and_then(|name| Profile::from_str(name.get_ref().as_str()?, false).ok());
    let defaults = match flag.or(named) {
        None | Some(Profile::Desktop) => return,
        Some(Profile::Service) => SERVICE,
        Some(Profile::Edge) => EDGE,
    };
    fill_table(root, DeTable::parse_recoverable(defaults).0.into_inner());
}

fn fill_table<'i>(table: &mut DeTable<'i>, defaults: DeTable<'i>) {
    for (key, default) in defaults {
        let key = Spanned::new(NOWHERE, key.into_inner());
        match default.into_inner() {
            DeValue::Table(defaults) => {
                let empty = || Spanned::new(NOWHERE, DeValue::Table(DeTable::new()));
                if let DeValue::Table(inner) = table.entry(key).or_insert_with(empty).get_mut() {
                    fill_table(inner, defaults);
                }
            }
            default => {
                table.entry(key).or_insert(Spanned::new(NOWHERE, default));
            }
        }
    }
}
