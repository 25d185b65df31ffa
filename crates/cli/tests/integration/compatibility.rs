//! The table of vLLM's and llama.cpp's flags and of request parameters, `docs/compatibility.toml`: each flag
//! goes through the real binary, each parameter through the server's parser, and nothing is ignored without a
//! notice. `docs/compatibility.md` is written from the table:
//! `UPDATE_EXPECT=1 cargo test -p throng-cli --test integration compatibility` writes it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Stdio;

use crate::process::throng;
use expect_test::expect_file;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use throng_api::openai::{chat, completion};
use throng_api::openapi;
use throng_api::{ApiError, ReadOptions};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    flag: Vec<Flag>,
    parameter: Vec<Parameter>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flag {
    name: String,
    /// The program that has the flag; vLLM when absent.
    #[serde(default)]
    of: Option<String>,
    example: Vec<String>,
    /// Its other names.
    #[serde(default)]
    also: Vec<String>,
    outcome: Outcome,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameter {
    name: String,
    route: Route,
    /// JSON.
    example: String,
    outcome: Outcome,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Accepted,
    Ignored,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Route {
    Chat,
    Completion,
    Both,
}

fn table() -> Table {
    toml::from_str(include_str!("../../../../docs/compatibility.toml")).unwrap()
}

/// What the real binary does with a flag. A configuration file that does not exist ends it after the flags
/// were judged.
fn outcome_of(flag: &Flag, name: &str) -> (Outcome, String) {
    const END: &str = "cannot read /nowhere/throng.toml";
    let mut arguments = vec!["serve", "--config", "/nowhere/throng.toml", name];
    arguments.extend(flag.example[1..].iter().map(String::as_str));
    let output = throng(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    let outcome = match told.contains(END) {
        false => {
            assert!(told.contains(&flag.name), "{arguments:?} is refused without its name: {told}");
            Outcome::Refused
        }
        true if told.contains(&format!("{} is ignored: ", flag.name)) => Outcome::Ignored,
        true => Outcome::Accepted,
    };
    (outcome, told)
}

#[test]
fn each_flag_is_accepted_ignored_with_a_notice_or_refused_by_name() {
    let flags = table().flag;
    assert!(flags.len() >= 90);
    for flag in &flags {
        assert_eq!(flag.example[0], flag.name);
        for name in flag.also.iter().chain([&flag.name]) {
            let (found, told) = outcome_of(flag, name);
            assert_eq!(found, flag.outcome, "{name} of {flag:?}: {told}");
        }
    }
}

/// Parses a body and returns the names of what was ignored.
fn parse(route: Route, body: &Value) -> Result<Vec<String>, ApiError> {
    let (body, options) = (body.to_string(), ReadOptions::default());
    let generation = match route {
        Route::Completion => completion::parse(body.as_bytes(), &options)?.spec.options,
        _ => chat::parse(body.as_bytes(), &options)?.options,
    };
    Ok(generation.ignored.names().to_vec())
}

fn outcome_at(parameter: &Parameter, route: Route) -> Outcome {
    let mut body = match route {
        Route::Completion => json!({"model": "m", "prompt": "Hi"}),
        _ => json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    };
    match parameter.name.as_str() {
        "stream_options" => body["stream"] = true.into(),
        "top_logprobs" => body["logprobs"] = true.into(),
        "tool_choice" => body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]),
        _ => {}
    }
    body[&parameter.name] = serde_json::from_str(&parameter.example).unwrap();
    match parse(route, &body) {
        Ok(ignored) if ignored.contains(&parameter.name) => Outcome::Ignored,
        Ok(ignored) => {
            assert!(ignored.is_empty(), "{}: {ignored:?}", parameter.name);
            Outcome::Accepted
        }
        Err(error) => {
            let named = error.param().unwrap_or_default();
            assert!(named.starts_with(&parameter.name), "{}: {error:?}", parameter.name);
            Outcome::Refused
        }
    }
}

#[test]
fn each_parameter_is_accepted_ignored_by_name_or_refused_by_name() {
    let parameters = table().parameter;
    assert!(parameters.len() >= 100);
    for parameter in &parameters {
        let routes: &[Route] = match parameter.route {
            Route::Both => &[Route::Chat, Route::Completion],
            Route::Chat => &[Route::Chat],
            Route::Completion => &[Route::Completion],
        };
        for &route in routes {
            assert_eq!(outcome_at(parameter, route), parameter.outcome, "{parameter:?} at {route:?}");
        }
    }
}

/// The properties of the request body of a route in the OpenAPI document.
fn documented(path: &str) -> BTreeSet<String> {
    let document: Value = serde_json::from_str(openapi::document()).unwrap();
    let mut schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    if let Some(reference) = schema["$ref"].as_str() {
        schema = document.pointer(reference.trim_start_matches('#')).unwrap();
    }
    let properties: &Map<String, Value> = schema["properties"].as_object().unwrap();
    properties.keys().cloned().collect()
}

#[test]
fn the_table_has_each_documented_parameter() {
    for (path, own) in [("/v1/chat/completions", Route::Chat), ("/v1/completions", Route::Completion)] {
        let listed: BTreeSet<String> = table()
            .parameter
            .into_iter()
            .filter(|parameter| [own, Route::Both].contains(&parameter.route))
            .map(|parameter| parameter.name)
            .collect();
        let missing: Vec<_> = documented(path).difference(&listed).cloned().collect();
        assert!(missing.is_empty(), "docs/compatibility.toml lacks {missing:?} of {path}");
    }
}

fn shown(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted => "accepted",
        Outcome::Ignored => "ignored, with a notice",
        Outcome::Refused => "refused",
    }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_document_is_written_from_the_table() {
    let table = table();
    let mut page = String::from(
        "# Compatibility\n\n\
         Which flags of vLLM and llama.cpp and which request parameters of OpenAI, vLLM, llama.cpp and SGLang Throng accepts.\n\
         A flag is ignored with a warning in the log, a parameter is named in the header `x-throng-ignored`, and what is refused\n\
         is refused by name, with a reason. What needs something that is not configured does nothing without it: `Idempotency-Key`\n\
         without a database, `user` without limits or a ledger.\n\n\
         This page is written from `docs/compatibility.toml`, from which the tests are made as well\n\
         (`crates/cli/tests/integration/compatibility.rs`).\n",
    );
    for (title, program) in [("vllm serve", None), ("llama-server", Some("llama.cpp"))] {
        write!(page, "\n## Flags of `{title}`\n\n| flag | outcome | |\n| --- | --- | --- |\n").unwrap();
        for Flag { name, also, outcome, note, .. } in
            table.flag.iter().filter(|flag| flag.of.as_deref() == program)
        {
            let names: Vec<String> = [name].into_iter().chain(also).map(|name| format!("`{name}`")).collect();
            writeln!(page, "| {} | {} | {} |", names.join(", "), shown(*outcome), escaped(note)).unwrap();
        }
    }
    page += "\n## Parameters of requests\n\n| parameter | chat | completion | |\n| --- | --- | --- | --- |\n";
    for Parameter { name, route, outcome, note, .. } in &table.parameter {
        let at = |other: Route| if *route == other { "" } else { shown(*outcome) };
        let (chat, completion) = (at(Route::Completion), at(Route::Chat));
        writeln!(page, "| `{name}` | {chat} | {completion} | {} |", escaped(note)).unwrap();
    }
    expect_file!["../../../../docs/compatibility.md"].assert_eq(&page);
}
