//! The inputs of a template besides the messages, and those that are refused.

use serde_json::{Map, Value, json};
use throng_text::{ChatTemplate, SpecialTokens, TemplateError, TemplateInput};

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn render(
    source: &str,
    messages: &Value,
    change: impl FnOnce(&mut TemplateInput<'_>),
) -> Result<String, TemplateError> {
    let tokens = SpecialTokens { control: vec!["<|im_start|>".to_owned()], ..SpecialTokens::default() };
    let mut input = TemplateInput::new(messages, &tokens);
    change(&mut input);
    ChatTemplate::new(source)?.render(&input).map(|prompt| prompt.text().into_owned())
}

fn continued(source: &str, content: &Value) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": content}]);
    render(source, &messages, |input| {
        input.add_generation_prompt = false;
        input.continue_final_message = true;
    })
}

#[test]
fn the_final_message_is_continued_where_it_ends() {
    let start = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        continued(CHATML, &json!("One, two,  ")).unwrap(),
        format!("{start}One, two,"),
        "a trimming template"
    );
    let verbatim = CHATML.replace(" | trim", "");
    assert_eq!(continued(&verbatim, &json!("One, two,  ")).unwrap(), format!("{start}One, two,  "));
    assert_eq!(continued(CHATML, &json!([{"type": "text", "text": "One"}])).unwrap(), format!("{start}One"));
    // The same text earlier in the conversation is not mistaken for the final message.
    assert_eq!(continued(CHATML, &json!("Go")).unwrap(), format!("{start}Go"));
}

#[test]
fn nothing_to_continue_is_an_error() {
    for content in [json!(null), json!(5)] {
        assert!(matches!(continued(CHATML, &content), Err(TemplateError::NothingToContinue(_))), "{content}");
    }
    let leaves_out = "{{ messages[0].content }}";
    assert!(matches!(continued(leaves_out, &json!("x")), Err(TemplateError::NothingToContinue(_))));
    let both = render(CHATML, &json!([{"role": "user", "content": "x"}]), |input| {
        input.continue_final_message = true
    });
    assert!(matches!(both, Err(TemplateError::NothingToContinue(_))));
}

#[test]
fn the_servers_own_variables_cannot_be_set() {
    for name in ["messages", "tools", "tokenize", "add_generation_prompt", "bos_token", "chat_template"] {
        let kwargs: Map<String, Value> = [(name.to_owned(), json!("x"))].into_iter().collect();
        let messages = json!([]);
        let tokens = SpecialTokens::default();
        let input = TemplateInput { kwargs: Some(&kwargs), ..TemplateInput::new(&messages, &tokens) };
        let refused = ChatTemplate::new(CHATML).unwrap().render(&input);
        assert!(matches!(refused, Err(TemplateError::ReservedArgument { .. })), "{name}");
    }
}

#[test]
fn the_variables_of_a_template_are_found() {
    let template = ChatTemplate::new("{% if enable_thinking %}{% set x = 1 %}{{ x }}{% endif %}").unwrap();
    assert!(template.reads("enable_thinking"));
    assert!(!template.reads("x") && !template.reads("reasoning_effort"));
    for source in [
        "{% set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}",
        "{%- set enable_thinking = enable_thinking if enable_thinking is defined else true %}{{ enable_thinking }}",
        "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}",
    ] {
        assert!(ChatTemplate::new(source).unwrap().reads("enable_thinking"), "{source}");
    }
    let knows_developers =
        ChatTemplate::new("{% if messages[0].role in ['system', \"developer\"] %}{% endif %}").unwrap();
    assert!(knows_developers.mentions("developer") && !template.mentions("developer"));
}

#[test]
fn a_template_for_tools_is_used_when_there_are_tools() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "rag"},
    ]});
    let template = ChatTemplate::from_tokenizer_config(config.to_string().as_bytes()).unwrap().unwrap();
    let (messages, tools, tokens) = (json!([]), json!([{}]), SpecialTokens::default());
    let text = |tools, documents, template_name| {
        let input =
            TemplateInput { tools, documents, template_name, ..TemplateInput::new(&messages, &tokens) };
        template.render(&input).map(|prompt| prompt.text().into_owned())
    };
    assert_eq!(text(None, None, None).unwrap(), "plain");
    assert_eq!(text(Some(&tools), None, None).unwrap(), "tools");
    assert_eq!(text(None, Some(&tools), None).unwrap(), "rag");
    assert_eq!(text(Some(&tools), Some(&tools), None).unwrap(), "tools");
    assert_eq!(text(Some(&tools), None, Some("rag")).unwrap(), "rag");
    assert!(matches!(text(None, None, Some("none")), Err(TemplateError::UnknownTemplate(_))));
    assert!(ChatTemplate::from_tokenizer_config(b"{}").unwrap().is_none());
}

#[test]
fn content_parts_are_joined_for_templates_that_expect_text() {
    let messages =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render("{{ messages[0].content }}", &messages, |_| {}).unwrap(), "a\nb");
    let takes_parts = "{% for part in messages[0].content %}<{{ part.text }}>{% endfor %}";
    assert_eq!(render(takes_parts, &messages, |_| {}).unwrap(), "<a><b>");
}

#[test]
fn arguments_arrive_as_values_and_reasoning_under_every_name() {
    let call = json!({"function": {"name": "f", "arguments": "{\"x\": [1, 2.0, \"ü\"]}"}});
    let messages = json!([{"role": "assistant", "reasoning": "hm", "tool_calls": [call]}]);
    let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }} {{ messages[0].reasoning_content }} {{ messages[0].thinking }}";
    assert_eq!(render(source, &messages, |_| {}).unwrap(), "{\"x\": [1, 2.0, \"ü\"]} hm hm");
    let broken = json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{not json"}}]}]);
    assert_eq!(
        render("{{ messages[0].tool_calls[0].function.arguments }}", &broken, |_| {}).unwrap(),
        "{not json"
    );
}

/// Expressions and their results in Python and Jinja.
#[test]
fn expressions_mean_what_they_mean_in_python() {
    for (source, expected) in [
        ("{{ {'b': 1, 'a': [true, none, 'ü\"']} | tojson }}", "{\"b\": 1, \"a\": [true, null, \"ü\\\"\"]}"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":2,\"b\":1}"),
        ("{{ {'a': [1], 'b': {}} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}"),
        ("{{ '<a&b>' | tojson }}", "\"<a&b>\""),
        ("{{ 'ü🙂' | tojson(ensure_ascii=true) }}", "\"\\u00fc\\ud83d\\ude42\""),
        ("{{ [1, 'a', none, true, {'k': 1.5}] }}", "[1, 'a', None, True, {'k': 1.5}]"),
        ("{{ true }} {{ none }} {{ 1.0 }} {{ 3 // 2 }} {{ 7 % 3 }}", "True None 1.0 1 1"),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{{ 'a,b,c'.split(',')[-1] }} {{ 'a,b,c'.rsplit(',', 1) }}", "c ['a,b', 'c']"),
        ("{{ '  x '.strip() }}{{ 'xay'.partition('a') }}{{ 'abc'.removeprefix('a') }}", "x('x', 'a', 'y')bc"),
        ("{{ 'abc'[::-1] }} {{ [1, 2, 3][1:] }} {{ 'b' in 'abc' }}", "cba [2, 3] True"),
        (
            "{{ 'x' is sequence }} {{ {} is mapping }} {{ 'x' is iterable }} {{ 1 is number }}",
            "True True True True",
        ),
        (
            "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{% macro m(a, b='y') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}{{ m('x', b='z') }}", "xyxz"),
        ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}x{{ a }}{% endset %}{{ c }}", "12x1"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("a {%- generation %} b {% endgeneration -%} c", "a b c"),
        ("{% generation %}\nx\n{% endgeneration %}\ny", "x\ny"),
        ("{{ strftime_now('%d %b %Y') }}", "20 Nov 2026"),
        ("{{ dict(a=1) }} {{ {'a': 1}.items() | list }} {{ {'a': 1}.get('b', 2) }}", "{'a': 1} [('a', 1)] 2"),
        ("{{ [3, 1, 2] | sort | join(', ') }} {{ ['a', 'b'] | length }} {{ 'A' | lower }}", "1, 2, 3 2 a"),
        (
            "{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }} {{ [{'a': 1}] | map(attribute='a') | join }}",
            "[{'a': 2}] 1",
        ),
    ] {
        let rendered = render(source, &json!([]), |input| input.now_unix_s = Some(1_795_176_000));
        assert_eq!(rendered.as_deref().unwrap_or("error"), expected, "{source}: {rendered:?}");
    }
}

#[test]
fn numbers_of_any_length_reach_the_prompt_digit_by_digit() {
    let json = r#"[{"enum": [2512292042121000001, 18446744073709551615, 18446744073709551616, -9223372036854775809,
        1234567890123456789012345678901234567890123456789, 0.5, 1e30, 12345678901234567890.5]}]"#;
    let tools: &'static Value = Box::leak(Box::new(throng_text::exact_number::parse(json).unwrap()));
    let messages = json!([]);
    let text =
        render("{{ tools | tojson }} {{ tools[0].enum[2] }} {{ tools[0].enum[4] }}", &messages, |input| {
            input.tools = Some(tools);
        });
    assert_eq!(
        text.unwrap(),
        "[{\"enum\": [2512292042121000001, 18446744073709551615, 18446744073709551616, -9223372036854775809, \
         1234567890123456789012345678901234567890123456789, 0.5, 1e+30, 1.2345678901234567e+19]}] \
         18446744073709551616 1234567890123456789012345678901234567890123456789"
    );
}

#[test]
fn a_template_of_many_delimiters_is_compiled_in_linear_time() {
    // Each took time that grew with the square of its length.
    let n = 50_000;
    for (source, is_right) in [
        ("{{ '' }}\n".repeat(n), true),
        (format!("{{% raw %}}{}", "{%\n".repeat(n)), false),
        (format!("{{% raw %}}{}%}}{{% endraw %}}", "{% \n".repeat(n)), true),
        (format!("{{{{ {}'a'{} }}}}", "'%s' % (\n".repeat(n), ")".repeat(n)), false),
        ("{{ '%s' % ('%s' % 'a') }}".to_owned(), true),
    ] {
        assert_eq!(ChatTemplate::new(&source).is_ok(), is_right, "{}", &source[..20]);
    }
}
