//! `throng explain`: asks a server for the timeline of a request and prints it. Does not know how it was
//! measured.

use anyhow::{Context, Result};
use serde_json::Value;

use super::chat::remote;
use crate::args::ExplainArgs;
use crate::process::output;

/// Width in characters of the bar of a phase that takes the whole time.
const BAR_CHARS: f64 = 40.0;

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached, or has no record of the request.
pub fn run(arguments: &ExplainArgs) -> Result<()> {
    let path = match &arguments.request {
        Some(id) => format!("/explain/{}", escaped(id)),
        None => "/explain".to_owned(),
    };
    let text = remote::get(&arguments.url, &path, arguments.api_key.as_deref())?;
    if arguments.json {
        return Ok(output::line(text)?);
    }
    let answer: Value = serde_json::from_str(&text).context("the server's answer is no JSON")?;
    let lines = match &arguments.request {
        Some(_) => explanation(&answer),
        None => answer["data"].as_array().into_iter().flatten().map(summary).collect(),
    };
    if lines.is_empty() {
        return Ok(output::line("The server knows no finished request of this key.")?);
    }
    Ok(output::line(lines.join("\n"))?)
}

/// The id, escaped for a URL path.
fn escaped(id: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let letter = |byte: u8| {
        if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    id.bytes().map(letter).collect()
}

fn summary(request: &Value) -> String {
    let word = |key: &str| request[key].as_str().unwrap_or("-").to_owned();
    let end = request["error"].as_str().or(request["outcome"].as_str()).unwrap_or("-");
    let status = request["status"].as_u64().map_or("-".to_owned(), |status| status.to_string());
    let (total, ttft) = (ms(&request["total_ms"]), ms(&request["ttft_ms"]));
    format!(
        "{}  {}  {status}  {}  {end}  total {total}  first token {ttft}",
        word("request_id"),
        word("route"),
        word("model")
    )
}

fn explanation(request: &Value) -> Vec<String> {
    let mut lines = vec![summary(request), String::new()];
    let total = request["total_ms"].as_f64().unwrap_or_default();
    for phase in request["phases"].as_array().into_iter().flatten() {
        let length = phase["ms"].as_f64().unwrap_or_default();
        let bar = "█".repeat((length / total.max(1e-3) * BAR_CHARS).round() as usize);
        let (name, about) = (phase["name"].as_str().unwrap_or("-"), phase["about"].as_str().unwrap_or(""));
        lines.push(format!("{name:>9} {:>10}  {bar:<40}  {about}", ms(&phase["ms"])));
    }
    lines.push(format!("{:>9} {:>10}", "total", ms(&request["total_ms"])));
    lines.push(String::new());
    lines.push(format!(
        "tokens: {} in the prompt, {} of them cached; {} generated",
        request["prompt_tokens"], request["cached_tokens"], request["output_tokens"]
    ));
    for (kind, left) in request["limits"].as_object().into_iter().flatten() {
        lines.push(format!("limit of {kind} a minute: {} of {} were left", left["remaining"], left["limit"]));
    }
    for tool in request["tools"].as_array().into_iter().flatten() {
        let word = |key: &str| tool[key].as_str().unwrap_or("-");
        let (server, name, status) = (word("server"), word("tool"), word("status"));
        lines.push(format!("tool {server}/{name}: {status} after {}", ms(&tool["ms"])));
    }
    let generations = request["generations"].as_array().into_iter().flatten();
    generations.for_each(|generation| lines.extend(of_engine(generation)));
    lines
}

/// Lines about the engine's work on one prompt.
fn of_engine(generation: &Value) -> Vec<String> {
    let waited = &generation["waited_for"];
    let mut lines = vec![format!(
        "queue: {}, of that {} for the end of the running step, {} for a place among the running sequences, {} for \
         blocks of the KV cache, {} for tokens of a step",
        ms(&generation["queue_ms"]),
        ms(&waited["running_step_ms"]),
        ms(&waited["sequences_ms"]),
        ms(&waited["blocks_ms"]),
        ms(&waited["step_tokens_ms"]),
    )];
    for part in ["prefill", "decode"] {
        let steps = &generation[part];
        lines.push(format!(
            "{part}: {} steps, {} tokens ({} of them drafts), the longest step {}; beside {} other sequences on average, at most {}",
            steps["steps"],
            steps["tokens"],
            steps["drafts"],
            ms(&steps["longest_step_ms"]),
            steps["batch_mates_mean"],
            steps["batch_mates_max"],
        ));
    }
    for chunk in generation["chunks"].as_array().into_iter().flatten() {
        lines.push(format!(
            "  chunk at {}: {} tokens from position {} in {}, in a step of {} tokens beside {} other sequences",
            ms(&chunk["at_ms"]),
            chunk["tokens"],
            chunk["position"],
            ms(&chunk["ms"]),
            chunk["step_tokens"],
            chunk["batch_mates"],
        ));
    }
    lines.push(format!(
        "preempted {} times, paused {} times for a slow reader ({})",
        generation["preemptions"],
        generation["pauses"],
        ms(&generation["paused_ms"])
    ));
    lines
}

fn ms(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_part_of_a_path() {
        assert_eq!(escaped("req_1-a/../?#%"), "req_1-a%2F..%2F%3F%23%25");
    }
}
