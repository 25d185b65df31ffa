//! Template idioms give the same results as Jinja2 in the environment of transformers' chat templates
//! (`fixtures/idioms`, made by the script there). The differences are listed in `different.json`: an idiom
//! that agrees must be removed from it.

use std::path::Path;

use serde_json::{Map, Value};
use throng_text::{ChatTemplate, SpecialTokens, TemplateInput};

fn render(source: &str, context: &Map<String, Value>) -> Result<String, String> {
    let mut context = context.clone();
    let messages = context.remove("messages").unwrap();
    let tools = context.remove("tools");
    let tokens = SpecialTokens::default();
    let input = TemplateInput {
        tools: tools.as_ref(),
        kwargs: Some(&context),
        now_unix_s: Some(1_795_176_000),
        ..TemplateInput::new(&messages, &tokens)
    };
    let template = ChatTemplate::new(source).map_err(|error| error.to_string())?;
    template.render(&input).map(|prompt| prompt.text().into_owned()).map_err(|error| error.to_string())
}

#[test]
fn idioms_render_as_in_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/idioms");
    let read =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    let (fixture, different) = (read("idioms.json"), read("different.json"));
    let different = different.as_array().unwrap();
    let context = fixture["context"].as_object().unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    let mut found = Vec::new();
    for case in cases {
        let source = case["source"].as_str().unwrap();
        let rendered = render(source, context);
        let same = rendered.as_deref().ok() == case["expected"].as_str();
        if same == different.contains(&case["source"]) {
            found.push(format!("{source}\n    is {rendered:?}\n   not {:?}", case["expected"].as_str()));
        }
    }
    assert!(cases.len() >= 400, "{}", cases.len());
    assert!(found.is_empty(), "{} of {}:\n{}", found.len(), cases.len(), found.join("\n"));
}

#[test]
fn formats_of_enormous_width_are_refused() {
    let no_messages = Map::from_iter([("messages".to_owned(), Value::Array(Vec::new()))]);
    for expression in [
        "'%2000000000s' % 'x'",
        "'%.2000000000f' % 1",
        "'%(a)2000000000s' % {'a': 'x'}",
        "'%*d' % (2000000000, 1)",
        "'%2000000000s'|format('x')",
    ] {
        let source = format!("{{{{ {expression} }}}}");
        assert!(render(&source, &no_messages).is_err(), "{expression}");
    }
    assert_eq!(
        render("{{ '%5s|%-4d|%s' % ('x', 7, 2000000000) }}", &no_messages).expect("valid"),
        "    x|7   |2000000000"
    );
}
