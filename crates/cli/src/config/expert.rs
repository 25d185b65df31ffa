//! The `[expert]` table of a configuration file: sizes of queues, bounds and timeouts, under the paths of the
//! settings elsewhere (`[expert.gateway.server] header_timeout_s = 5`). Its keys are moved to these paths
//! before the file is deserialized.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::document::{self, NOWHERE, Remark};
use super::tips;

/// Name of the table of expert settings.
const TABLE: &str = "expert";

/// The paths of all expert settings.
pub const KEYS: [&str; 40] = [
    "engine.max_batch_tokens",
    "engine.max_batch_sequences",
    "engine.inter_token_target_ms",
    "engine.max_queued_requests",
    "engine.max_queued_tokens",
    "engine.queue_timeout_ms",
    "engine.step_timeout_s",
    "adapters.max_loras",
    "adapters.max_lora_rank",
    "adapters.max_lora_memory_bytes",
    "gateway.server.max_connections",
    "gateway.server.header_timeout_s",
    "gateway.server.body_timeout_s",
    "gateway.server.idle_timeout_s",
    "gateway.server.slow_reader_timeout_s",
    "gateway.server.websocket_idle_timeout_s",
    "gateway.server.websocket_max_age_s",
    "gateway.server.shutdown_timeout_s",
    "gateway.server.max_request_memory_bytes",
    "gateway.api.max_body_bytes",
    "gateway.api.max_stop_strings",
    "gateway.api.max_logprobs",
    "gateway.api.max_choices",
    "gateway.api.max_concurrent_tokenizations",
    "gateway.api.max_queued_tokenizations",
    "gateway.api.tokenization_timeout_s",
    "gateway.api.max_answer_bytes",
    "gateway.api.ping_interval_s",
    "gateway.overload.max_queue_wait_ms",
    "gateway.overload.default_deadline_ms",
    "gateway.overload.first_token_timeout_ms",
    "gateway.overload.idle_timeout_ms",
    "gateway.overload.total_timeout_ms",
    "gateway.routing.replica_wait_s",
    "gateway.observability.max_explained_requests",
    "gateway.state.max_objects",
    "gateway.state.max_bytes",
    "gateway.state.max_file_bytes",
    "gateway.state.max_batches",
    "gateway.state.max_batch_lines",
];

/// Moves the keys of `[expert]` to their places. Returns the mistakes in that table, and a warning for each
/// expert setting outside of it, where earlier releases had it.
pub(super) fn unfold(root: &mut DeTable<'_>) -> Vec<Remark> {
    let expert = root.remove_entry(TABLE);
    let outside = KEYS.iter().filter_map(|path| {
        let span = key(root, path)?.span();
        let (section, name) = path.rsplit_once('.')?;
        let text =
            format!("{path} is now {name} in [{TABLE}.{section}]; the next release reads it there only");
        Some(Remark { span, text, is_mistake: false })
    });
    let mut remarks: Vec<Remark> = outside.collect();
    if let Some((name, value)) = expert {
        unfold_table(value, "", name, root, &mut remarks);
    }
    remarks
}

/// Moves the keys of a table of `[expert]` to the table at `path`.
fn unfold_table<'i>(
    table: Spanned<DeValue<'i>>,
    path: &str,
    name: Spanned<DeString<'i>>,
    root: &mut DeTable<'i>,
    remarks: &mut Vec<Remark>,
) {
    let mistake = |span, text| Remark { span, text, is_mistake: true };
    let DeValue::Table(table) = table.into_inner() else {
        remarks.push(mistake(
            name.span(),
            format!("{}: must be a table", [TABLE, path].join(".").trim_end_matches('.')),
        ));
        return;
    };
    for (key, value) in table {
        let span = key.span();
        let inner = document::joined(path, key.get_ref());
        if KEYS.contains(&inner.as_str()) {
            if !insert(root, &inner, key, value) {
                remarks.push(mistake(span, format!("{TABLE}.{inner}: {inner} is set besides")));
            }
        } else if KEYS.iter().any(|known| is_below(known, &inner)) {
            unfold_table(value, &inner, key, root, remarks);
        } else {
            let expected = format!("unknown field `{}`, expected one of {}", key.get_ref(), names_in(path));
            let tip = tips::tip(&inner, &expected).map(|tip| format!(". {tip}")).unwrap_or_default();
            remarks.push(mistake(span, format!("{TABLE}.{inner}: {expected}{tip}")));
        }
    }
}

/// Whether a path is in a table or in one of its subtables.
fn is_below(path: &str, table: &str) -> bool {
    path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'))
}

/// The names of expert settings in the table at `path`, each in backquotes.
fn names_in(path: &str) -> String {
    let inside = |known: &&'static str| match path {
        "" => Some(*known),
        path => known.strip_prefix(path)?.strip_prefix('.'),
    };
    let names = KEYS.iter().filter_map(inside).filter_map(|rest| rest.split('.').next());
    let mut names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.dedup();
    names.join(", ")
}

/// The key of the setting at `path`, if the file has it.
pub(super) fn key<'a, 'i>(root: &'a DeTable<'i>, path: &str) -> Option<&'a Spanned<DeString<'i>>> {
    match path.split_once('.') {
        Some((table, rest)) => key(root.get(table)?.get_ref().as_table()?, rest),
        None => root.get_key_value(path).map(|(key, _)| key),
    }
}

/// Inserts a setting at its path and creates the tables around it. Returns false if the setting exists. A
/// section that is not a table is left unchanged: that is a separate mistake.
fn insert<'i>(
    table: &mut DeTable<'i>,
    path: &str,
    key: Spanned<DeString<'i>>,
    value: Spanned<DeValue<'i>>,
) -> bool {
    let Some((name, rest)) = path.split_once('.') else {
        let is_new = !table.contains_key(path);
        if is_new {
            table.insert(key, value);
        }
        return is_new;
    };
    let name = Spanned::new(NOWHERE, DeString::from(name.to_owned()));
    let empty = || Spanned::new(NOWHERE, DeValue::Table(DeTable::new()));
    match table.entry(name).or_insert_with(empty).get_mut() {
        DeValue::Table(inner) => insert(inner, rest, key, value),
        _ => true,
    }
}
