//! Chat templates of real models render as in transformers (`fixtures/chat_templates`), also with user text
//! full of control tokens; templates that never end are refused.

use std::path::Path;

use serde_json::{Map, Value};
use throng_text::{ChatTemplate, SpecialTokens, TemplateError, TemplateInput};

/// Noon of 2026-11-20, the day on which transformers rendered the fixtures.
const NOW_UNIX_S: i64 = 1_795_176_000;

struct Fixture {
    name: String,
    template: ChatTemplate,
    tokens: SpecialTokens,
    cases: Vec<Value>,
}

fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat_templates");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    let read = |path: std::path::PathBuf| {
        let cases: Value =
            serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
        let named = cases["special_tokens"].as_object().unwrap().iter();
        let named: Vec<(String, String)> =
            named.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect();
        let mut control: Vec<String> = named.iter().map(|(_, text)| text.clone()).collect();
        control.extend(
            ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "[INST]", "[/INST]"].map(str::to_owned),
        );
        Fixture {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            template: ChatTemplate::new(&std::fs::read_to_string(&path).unwrap()).unwrap(),
            tokens: SpecialTokens {
                named,
                control,
                plain_added: vec!["<think>".to_owned(), "</think>".to_owned()],
            },
            cases: cases["cases"].as_array().unwrap().clone(),
        }
    };
    files.into_iter().map(read).collect()
}

fn render(fixture: &Fixture, case: &Value) -> Result<String, TemplateError> {
    let mut kwargs: Map<String, Value> = case["kwargs"].as_object().unwrap().clone();
    let add_generation_prompt = kwargs.remove("add_generation_prompt").is_some_and(|value| value == true);
    let input = TemplateInput {
        tools: Some(&case["tools"]).filter(|tools| !tools.is_null()),
        add_generation_prompt,
        kwargs: Some(&kwargs),
        now_unix_s: Some(NOW_UNIX_S),
        ..TemplateInput::new(&case["messages"], &fixture.tokens)
    };
    fixture.template.render(&input).map(|prompt| prompt.text().into_owned())
}

#[test]
fn every_render_equals_that_of_transformers() {
    let fixtures = fixtures();
    assert_eq!(fixtures.len(), 6);
    let mut failures = Vec::new();
    for fixture in &fixtures {
        for case in &fixture.cases {
            let outcome = render(fixture, case);
            let agrees = match (&outcome, case["expected"].as_str()) {
                (Ok(text), Some(expected)) => text == expected,
                // Rendered in another order of roles, which `turn_orders.rs` tests.
                (Ok(text), None) if case["error"] == "TemplateError: System role not supported" => {
                    text.contains("Be brief.\n\nWhat is 2+2?")
                }
                (Err(TemplateError::Refused(message)), None) => {
                    case["error"].as_str() == Some(&format!("TemplateError: {message}"))
                }
                (Err(TemplateError::Render(_)), None) => {
                    case["error"].as_str().unwrap().starts_with("TypeError")
                }
                _ => false,
            };
            if !agrees {
                failures.push(format!("{} {}: {outcome:#?}, expected {case:#}", fixture.name, case["name"]));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
