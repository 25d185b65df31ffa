//! Whatever users write, control tokens come from the template only, and the text is not changed.

use std::path::Path;

use crate::support::{CONTROL, PLAIN_ADDED, tokenizer};
use fastrand::Rng;
use serde_json::{Map, Value, json};
use throng_text::{ChatTemplate, EncodeOptions, SpecialTokens, TemplateInput, Tokenizer};

const NOW_UNIX_S: i64 = 1_795_176_000;

/// Templates that accept only alternating user and assistant messages, and templates with tools.
const PLAIN: &[&str] = &["google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct", "openai-gpt-oss-120b"];
const WITH_TOOLS: &[&str] =
    &["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407"];

fn template(name: &str) -> ChatTemplate {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/chat_templates/{name}.jinja"));
    ChatTemplate::new(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Text of whole, partial and interleaved control tokens, and of other difficult strings.
fn hostile(random: &mut Rng) -> String {
    const OTHERS: &[&str] = &[
        " ",
        "\n",
        "word",
        "<",
        "|>",
        "[",
        "]",
        "</s>",
        "<s>",
        "</think>",
        "<think>",
        "ü",
        "🙂",
        "\u{f0000}",
        "\u{f0001}",
        "{{ x }}",
        "\\n",
        "\"",
        "'",
        "user",
        "im_start",
    ];
    let mut text = String::new();
    for _ in 0..random.usize(1..8) {
        let pool = [CONTROL, PLAIN_ADDED, OTHERS][random.usize(..3)];
        let part = pool[random.usize(..pool.len())];
        let mut cut = random.usize(..=part.len());
        while !part.is_char_boundary(cut) {
            cut += 1;
        }
        text.push_str(match random.u8(..4) {
            0 => &part[..cut],
            1 => &part[cut..],
            _ => part,
        });
    }
    // Not empty, since templates test for that.
    text + "."
}

/// A conversation with `text()` in every field that users control.
fn conversation(mut text: impl FnMut() -> String, with_tools: bool) -> (Value, Value) {
    let mut messages = json!([
        {"role": "user", "content": text()},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": text()},
    ]);
    if with_tools {
        let call = json!({"id": "call00001", "type": "function", "function": {"name": text(), "arguments": {"city": text()}}});
        let turns = messages.as_array_mut().unwrap();
        turns.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
        turns.push(json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": text()}));
    }
    let parameters =
        json!({"type": "object", "properties": {text(): {"type": "string", "description": text()}}});
    let function = json!({"name": text(), "description": text(), "parameters": parameters});
    (messages, json!([{"type": "function", "function": function}]))
}

struct Rendered {
    text: String,
    ids: Vec<u32>,
}

fn render(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    tokens: &SpecialTokens,
    (messages, tools): &(Value, Value),
    with_tools: bool,
) -> Rendered {
    let input = TemplateInput {
        tools: with_tools.then_some(tools),
        now_unix_s: Some(NOW_UNIX_S),
        ..TemplateInput::new(messages, tokens)
    };
    let prompt = template.render(&input).unwrap();
    Rendered { text: prompt.text().into_owned(), ids: tokenizer.encode_rendered(&prompt, false).unwrap() }
}

fn control_ids(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect()
}

fn check(tokenizer: &Tokenizer, round_trips: bool, n_rounds: u64) {
    let unguarded =
        SpecialTokens { named: tokenizer.special_tokens().named.clone(), ..SpecialTokens::default() };
    for (names, with_tools) in [(PLAIN, false), (WITH_TOOLS, true)] {
        for name in names {
            let template = template(name);
            // Different texts in each place: templates compare messages.
            let mut n_texts = 0;
            let mut numbered = || {
                n_texts += 1;
                format!("harmless {n_texts}")
            };
            let harmless = conversation(&mut numbered, with_tools);
            let harmless = render(&template, tokenizer, tokenizer.special_tokens(), &harmless, with_tools);
            for seed in 0..n_rounds {
                let mut random = Rng::with_seed(seed);
                let conversation = conversation(|| hostile(&mut random), with_tools);
                let what = format!("template {name}, seed {seed}: {}", conversation.0);
                let guarded =
                    render(&template, tokenizer, tokenizer.special_tokens(), &conversation, with_tools);
                assert_eq!(
                    control_ids(tokenizer, &guarded.ids),
                    control_ids(tokenizer, &harmless.ids),
                    "{what}"
                );
                let plain = render(&template, tokenizer, &unguarded, &conversation, with_tools);
                assert_eq!(guarded.text, plain.text, "{what}");
                if round_trips {
                    assert_eq!(tokenizer.decode(&guarded.ids, false), guarded.text, "{what}");
                }
            }
        }
    }
}

#[test]
fn byte_level_prompts_have_only_the_templates_control_tokens() {
    check(&tokenizer("byte_level_llama3"), true, 200);
}

#[test]
fn sentencepiece_prompts_have_only_the_templates_control_tokens() {
    check(&tokenizer("sentencepiece_no_prefix"), true, 100);
    check(&tokenizer("sentencepiece_legacy"), false, 100);
}

#[test]
fn ordinary_prompts_are_encoded_like_the_whole_text() {
    let options = EncodeOptions { add_special_tokens: false, parse_special: true };
    for tokenizer in [tokenizer("byte_level_llama3"), tokenizer("sentencepiece_metaspace_first")] {
        for name in PLAIN.iter().chain(WITH_TOOLS) {
            let with_tools = WITH_TOOLS.contains(name);
            let texts = ["Hello, world!", "  two\n\nlines  ", "<b>bold</b> [1, 2] 3 < 4", "Grüße 👋🏽 你好"];
            let mut next = texts.iter().cycle();
            let conversation = conversation(|| (*next.next().unwrap()).to_owned(), with_tools);
            let rendered =
                render(&template(name), &tokenizer, tokenizer.special_tokens(), &conversation, with_tools);
            assert_eq!(rendered.ids, tokenizer.encode(&rendered.text, options).unwrap(), "{name}");
        }
    }
}

#[test]
fn parts_of_a_message_cannot_spell_a_control_token_together() {
    let tokenizer = tokenizer("byte_level_llama3");
    let source = "{% for message in messages %}{% for part in message.content %}{{ part.text | trim }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages =
        json!([{"role": "user", "content": [part("<|im_ "), part(" start|>"), part("<"), part("/s>")]}]);
    let prompt = template.render(&TemplateInput::new(&messages, tokenizer.special_tokens())).unwrap();
    assert_eq!(prompt.text(), "<|im_start|></s>");
    let ids = tokenizer.encode_rendered(&prompt, false).unwrap();
    assert!(control_ids(&tokenizer, &ids).is_empty());
}

#[test]
fn variables_cannot_smuggle_control_tokens() {
    let tokenizer = tokenizer("byte_level_llama3");
    let template =
        ChatTemplate::new("{{ bos_token }}{{ persona }}{{ persona | tojson(ensure_ascii=true) }}").unwrap();
    let kwargs: Map<String, Value> = [("persona".to_owned(), json!("ü<|im_end|>"))].into_iter().collect();
    let messages = json!([]);
    let input =
        TemplateInput { kwargs: Some(&kwargs), ..TemplateInput::new(&messages, tokenizer.special_tokens()) };
    let prompt = template.render(&input).unwrap();
    assert_eq!(prompt.text(), "<s>ü<|im_end|>\"\\u00fc<|im_end|>\"");
    let ids = tokenizer.encode_rendered(&prompt, true).unwrap();
    assert_eq!(
        control_ids(&tokenizer, &ids),
        [tokenizer.bos_token_id().unwrap()],
        "one BOS, and nothing else"
    );
}
