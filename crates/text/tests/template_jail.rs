//! Templates that would never end, or fill the memory, are refused with a typed error.

use serde_json::json;
use throng_text::{ChatTemplate, SpecialTokens, TemplateError, TemplateInput};

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let tokens = SpecialTokens::default();
    let template = ChatTemplate::new(source)?;
    template.render(&TemplateInput::new(&messages, &tokens)).map(|prompt| prompt.text().into_owned())
}

fn limit(source: &str) -> &'static str {
    match render(source) {
        Err(TemplateError::Exhausted { limit }) => limit,
        other => panic!("{source}: {:?}", other.map(|text| text.len())),
    }
}

#[test]
fn steps_are_bounded() {
    let nested =
        "{% for a in range(10000) %}{% for b in range(10000) %}{% set x = a %}{% endfor %}{% endfor %}";
    assert_eq!(limit(nested), "steps");
}

#[test]
fn ranges_are_bounded() {
    assert_eq!(limit("{% for a in range(10**9) %}{% endfor %}"), "memory");
}

#[test]
fn strings_cannot_double_without_end() {
    for source in [
        "{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
        "{% macro double(s, n) %}{% if n %}{{ double(s ~ s, n - 1) }}{% else %}{{ s }}{% endif %}{% endmacro %}{{ double('xx', 40) }}",
        "{% for i in range(10000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% set s = 'x' * 1000000 %}{% set t = s.replace('x', 'xxxxxxxxxxxxxxxx') %}",
        "{% set s = 'x' * 1000000 %}{% set t = s | replace('x', 'xxxxxxxxxxxxxxxx') %}",
        "{% set s = ['x' * 1000000] %}{% set t = (s * 1000) | join(',') %}",
        "{% set s = ['x' * 1000000] %}{{ (s * 1000) | list | tojson }}",
    ] {
        assert_eq!(limit(source), "memory", "{source}");
    }
}

#[test]
fn recursion_is_bounded() {
    assert_eq!(limit("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"), "depth");
    let nesting =
        "{% set ns = namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = [ns.l] %}{% endfor %}";
    assert_eq!(limit(nesting), "depth");
}

#[test]
fn broken_templates_are_syntax_errors() {
    for source in ["{% if %}", "{{ 'x", "{% set x = %}", "{% generation %}", "{% for x in y %}"] {
        assert!(matches!(render(source), Err(TemplateError::Syntax(_))), "{source}");
    }
}

#[test]
fn hostile_source_is_an_error_or_a_render_never_a_panic() {
    let nasty = [
        "{{",
        "{%",
        "{#",
        "}}",
        "%}",
        "#}",
        "'",
        "\"",
        "set",
        "macro",
        "=",
        "(",
        ")",
        "raw",
        "endraw",
        "x",
        " ",
        "ü",
        "-",
        "\\",
        "generation",
        "endset",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..20_000 {
        let n_parts = random.usize(1..12);
        let source: String = (0..n_parts).map(|_| nasty[random.usize(..nasty.len())]).collect();
        let outcome = std::panic::catch_unwind(|| render(&source));
        assert!(outcome.is_ok(), "round {round} of seed 7: {source:?}");
    }
}
