//! Conversations in orders that clients send and a template refuses: instructions in the middle, several
//! messages of one role in a row, a conversation that the assistant begins. They are rendered in the closest
//! order that the template takes.

use std::path::Path;

use serde_json::{Value, json};
use throng_text::{ChatTemplate, SpecialTokens, TemplateInput};

/// Qwen 3.5's rule in the words of its template.
const SYSTEM_FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
    {{ '<' + m.role + '>' + m.content }}{% endfor %}";
/// The rule of Gemma 3 and of Mistral.
const ALTERNATING: &str = "{% set n = namespace(i=0) %}{% for m in messages %}{% if m.role != 'system' %}\
    {% if (m.role == 'user') != (n.i % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}\
    {% set n.i = n.i + 1 %}{% endif %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";

fn rendered(template: &ChatTemplate, messages: &Value) -> Result<String, String> {
    let named = ["bos_token", "eos_token"].map(|name| (name.to_owned(), String::new()));
    let tokens = SpecialTokens { named: named.into(), ..SpecialTokens::default() };
    let prompt = template.render(&TemplateInput::new(messages, &tokens));
    prompt.map(|prompt| prompt.text().into_owned()).map_err(|error| error.to_string())
}

fn messages(turns: &[(&str, &str)]) -> Value {
    turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn published(name: &str) -> ChatTemplate {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat_templates");
    ChatTemplate::new(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// Asserts that `sent` is rendered as `same_as` is.
fn assert_same(template: &ChatTemplate, sent: &[(&str, &str)], same_as: &[(&str, &str)]) {
    let expected = rendered(template, &messages(same_as)).expect("an order that the template takes");
    assert_eq!(rendered(template, &messages(sent)), Ok(expected), "{sent:?}");
}

#[test]
fn instructions_in_the_middle_come_first() {
    let template = ChatTemplate::new(SYSTEM_FIRST).unwrap();
    assert_same(
        &template,
        &[("system", "one"), ("user", "a"), ("assistant", "b"), ("system", "two"), ("user", "c")],
        &[("system", "one\n\ntwo"), ("user", "a"), ("assistant", "b"), ("user", "c")],
    );
    assert_same(&template, &[("user", "a"), ("system", "late")], &[("system", "late"), ("user", "a")]);
}

#[test]
fn neighbours_of_one_role_become_one_turn() {
    let strict = ChatTemplate::new(ALTERNATING).unwrap();
    for template in [&strict, &published("mistralai-Mistral-Nemo-Instruct-2407.jinja")] {
        assert_same(
            template,
            &[("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")],
            &[("user", "a\n\nb"), ("assistant", "c\n\nd"), ("user", "e")],
        );
    }
    assert_same(
        &strict,
        &[("assistant", "hello"), ("user", "a")],
        &[("user", ""), ("assistant", "hello"), ("user", "a")],
    );
}

#[test]
fn a_user_may_go_on_after_the_result_of_a_call() {
    let template = published("mistralai-Mistral-Nemo-Instruct-2407.jinja");
    let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let sent = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "content": "result"},
        {"role": "user", "content": "go on"},
    ]);
    let prompt = rendered(&template, &sent).expect("an order that the template takes");
    assert!(prompt.contains("result") && prompt.ends_with("[INST]go on[/INST]"), "{prompt}");
}

#[test]
fn a_model_without_system_messages_gets_them_in_the_first_turn() {
    let gemma = published("google-gemma-2-2b-it.jinja");
    assert_same(&gemma, &[("system", "Be brief."), ("user", "Hi")], &[("user", "Be brief.\n\nHi")]);
    assert_same(
        &gemma,
        &[("system", "Be brief."), ("user", "Hi"), ("user", "there"), ("system", "In French.")],
        &[("user", "Be brief.\n\nIn French.\n\nHi\n\nthere")],
    );
    assert_same(&gemma, &[("system", "Say something.")], &[("user", "Say something.")]);
}

#[test]
fn orders_that_a_template_takes_are_left_alone() {
    let plain =
        ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").unwrap();
    let sent = messages(&[("user", "a"), ("system", "s"), ("user", "b")]);
    assert_eq!(rendered(&plain, &sent), Ok("<user>a<system>s<user>b".to_owned()));
}

#[test]
fn what_no_order_mends_is_refused_in_the_templates_words() {
    let template =
        ChatTemplate::new("{% for m in messages %}{{ raise_exception('never ' + m.role) }}{% endfor %}")
            .unwrap();
    let sent = messages(&[("user", "a"), ("system", "s"), ("user", "b")]);
    assert_eq!(rendered(&template, &sent), Err("never user".to_owned()));
}
