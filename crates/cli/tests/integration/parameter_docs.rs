//! `docs/parameters.md` lists the parameters of all requests with their ranges. It is written from the
//! OpenAPI document, which comes from the tables that read requests:
//! `UPDATE_EXPECT=1 cargo test --workspace --test integration parameter_docs`.

use std::fmt::Write;

use expect_test::expect_file;
use serde_json::{Map, Value};
use throng_api::openapi;

type Parameters = Map<String, Value>;

#[test]
fn the_page_is_written_from_the_tables_that_read_requests() {
    let document: Value = serde_json::from_str(openapi::document()).expect("the document is JSON");
    let parameters = |schema: &str| -> Parameters {
        let schema = &document["components"]["schemas"][schema];
        schema["properties"].as_object().unwrap_or_else(|| panic!("{schema} has parameters")).clone()
    };
    let required = |schema: &str| -> Vec<String> {
        let names = document["components"]["schemas"][schema]["required"].as_array();
        names.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let (chat, completion) = (parameters("ChatCompletionRequest"), parameters("CompletionRequest"));
    let is_shared = |name: &str| chat.contains_key(name) && chat.get(name) == completion.get(name);
    let (shared, own): (Parameters, Parameters) =
        chat.clone().into_iter().partition(|(name, _)| is_shared(name));
    let text_only = completion.clone().into_iter().filter(|(name, _)| !is_shared(name)).collect();

    let mut page = String::from(
        "# Parameters of requests\n\n\
         Every parameter that a body may have, with the values that are accepted; any other value is 400 with the parameter's\n\
         name in `param`. `null` counts as absent. Unknown parameters are ignored and named in `x-throng-ignored`. [api.md](api.md)\n\
         has examples.\n\n\
         This page is written from the tables that requests are read with (`crates/cli/tests/integration/parameter_docs.rs`);\n\
         `/openapi.json` has the same for programs.\n",
    );
    let chat_required = required("ChatCompletionRequest");
    section(
        &mut page,
        "Chat and text completions",
        &["/v1/chat/completions", "/v1/completions"],
        &shared,
        &chat_required,
    );
    section(&mut page, "Only chat completions", &["/v1/chat/completions"], &own, &chat_required);
    section(
        &mut page,
        "Only text completions",
        &["/v1/completions"],
        &text_only,
        &required("CompletionRequest"),
    );
    for (title, schema) in [
        ("Responses", "ResponseRequest"),
        ("Tokens of an input", "InputTokensRequest"),
        ("Conversations", "ConversationRequest"),
        ("Items of a conversation", "ItemsRequest"),
        ("Messages", "MessageRequest"),
        ("Tokens of a message", "CountTokensRequest"),
        ("Batches", "CreateBatchRequest"),
        ("Batches of messages", "MessageBatchRequest"),
        ("Ollama's chat", "OllamaChatRequest"),
        ("Ollama's generate", "OllamaGenerateRequest"),
        ("Ollama's embeddings", "OllamaEmbedRequest"),
        ("Ollama's embedding of one text", "OllamaEmbeddingsRequest"),
        ("Bringing a model", "OllamaPullRequest"),
        ("Filling in the middle", "InfillRequest"),
        ("Embeddings", "EmbeddingRequest"),
        ("Reranking", "RerankRequest"),
        ("Scores of pairs", "ScoreRequest"),
        ("Classes", "ClassifyRequest"),
        ("Tokens of a text", "TokenizeRequest"),
        ("Text of tokens", "DetokenizeRequest"),
        ("Moderation", "ModerationRequest"),
        ("Loading an adapter", "LoadAdapterRequest"),
        ("Unloading an adapter", "UnloadAdapterRequest"),
    ] {
        let paths = paths_with_body(&document, schema);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        assert!(!paths.is_empty(), "no route takes {schema}");
        section(&mut page, title, &paths, &parameters(schema), &required(schema));
    }
    expect_file!["../../../../docs/parameters.md"].assert_eq(&page);
}

/// The paths whose body is `schema`.
fn paths_with_body(document: &Value, schema: &str) -> Vec<String> {
    let reference = format!("#/components/schemas/{schema}");
    let paths = document["paths"].as_object().expect("the document has paths");
    let takes = |path: &&String| {
        paths[*path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            == reference.as_str()
    };
    paths.keys().filter(takes).cloned().collect()
}

fn section(page: &mut String, title: &str, paths: &[&str], parameters: &Parameters, required: &[String]) {
    let paths: Vec<String> = paths.iter().map(|path| format!("`POST {path}`")).collect();
    write!(
        page,
        "\n## {title}\n\n{}\n\n| parameter | values | meaning |\n| --- | --- | --- |\n",
        paths.join(", ")
    )
    .expect("a string takes everything");
    for (name, schema) in parameters {
        let about = schema["description"].as_str().unwrap_or_else(|| panic!("{name} has no description"));
        let needed = if required.contains(name) { "; required" } else { "" };
        let (values, about) = (values(schema), about.replace('|', "\\|"));
        writeln!(page, "| `{name}` | {values}{needed} | {about} |").expect("a string takes everything");
    }
}

/// What a JSON Schema accepts, in words.
fn values(schema: &Value) -> String {
    if let Some(names) = schema["enum"].as_array() {
        let names: Vec<String> =
            names.iter().filter_map(|name| Some(format!("`{}`", name.as_str()?))).collect();
        return names.join(", ");
    }
    if let Some(kinds) = schema["anyOf"].as_array() {
        let kinds: Vec<String> = kinds.iter().filter(|kind| kind["type"] != "null").map(values).collect();
        return kinds.join(", or ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    match kind {
        Some("boolean") => "true, false".to_owned(),
        Some("integer") => format!("integer{}", range(schema)),
        Some("number") => format!("number{}", range(schema)),
        Some("string") => format!("text{}", at_most(&schema["maxLength"], "bytes")),
        Some("array") => {
            format!("list{} of: {}", at_most(&schema["maxItems"], ""), values(&schema["items"]))
        }
        Some("object") => format!("object{}", at_most(&schema["maxProperties"], "members")),
        _ => "any value".to_owned(),
    }
}

/// The bounds of a number. Those of the machine's integers are no bounds to a reader.
fn range(schema: &Value) -> String {
    let above = schema["exclusiveMinimum"].as_f64().map(|min| format!(" above {min}"));
    let is_bound = |bound: &f64| bound.abs() < f64::from(i32::MAX);
    let from = schema["minimum"].as_f64().filter(is_bound).map(|min| format!(" from {min}"));
    let to = schema["maximum"].as_f64().filter(is_bound).map(|max| format!(" to {max}"));
    [above, from, to].into_iter().flatten().collect()
}

fn at_most(limit: &Value, unit: &str) -> String {
    limit
        .as_u64()
        .map(|limit| format!(" of at most {limit} {unit}").trim_end().to_owned())
        .unwrap_or_default()
}
