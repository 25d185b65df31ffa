//! Templates that never end or exhaust memory are refused with a typed error.

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
fn lists_cannot_double_without_end() {
    for source in [
        "{% set ns = namespace(l=[1, 2]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = (ns.l + ns.l) | list %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l * 2 %}{% endfor %}",
        "{% macro double(l, n) %}{% if n %}{{ double(l + l, n - 1) }}{% else %}{{ l | length }}{% endif %}{% endmacro %}{{ double([1, 2], 60) }}",
        "{% for l in [[1, 2]] recursive %}{{ loop([l + l]) }}{% endfor %}",
        "{% for s in ['xx'] recursive %}{{ loop([s ~ s]) }}{% endfor %}",
        "{% for s, n in [('xx', 1)] recursive %}{{ loop([(s ~ s, n)]) }}{% endfor %}",
        "{% set l = [1] | batch(10 ** 9, 0) %}",
        "{{ [1] | batch(10 ** 9, 0) | length }}",
        "{{ [1] | slice(10 ** 9) | list | length }}",
    ] {
        assert_eq!(limit(source), "memory", "{source}");
    }
}

#[test]
fn sums_of_empty_lists_are_cheap() {
    let source = "{% set ns = namespace(l=[]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}";
    assert_eq!(render(source).unwrap(), "0");
}

#[test]
fn lists_are_summed_and_cut_as_usual() {
    let source = "{% set ns = namespace(l=[]) %}{% for i in range(3000) %}{% set ns.l = ns.l + [i] %}{% endfor %}\
                  {{ ns.l | length }} {{ ns.l[-1] }} {{ ns.l[1:3] }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3] | slice(2) | list }}\
                  {% for l in [1, [2, 3]] recursive %}<{% if l is sequence %}{{ loop(l) }}{% else %}{{ l }}{% endif %}>{% endfor %}";
    assert_eq!(render(source).unwrap(), "3000 2999 [1, 2] [[1, 2], [3, 0]] [[1, 2], [3]]<1><<2><3>>");
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
