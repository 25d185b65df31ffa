//! Constraints that are no JSON schemas: expressions, choices, grammars, structural tags.

use serde_json::{Value, json};
use throng_text::grammar::{ConstraintSpec, GrammarError, GrammarMatcher};

use super::vocabularies::{COMPILER, STARTER};
use super::walk::{accepts, matcher, seed, walk};

const JSON_GBNF: &str = r##"
# JSON, as llama.cpp's examples write it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,1})? ws

ws ::= | " " | "\n" [ \t]{0,20}
"##;

fn refused(spec: ConstraintSpec) -> GrammarError {
    let grammar = COMPILER.compile(&spec);
    grammar.map(drop).expect_err(&format!("{spec:?} must be refused"))
}

/// Walks a few times and checks each text that ended.
fn all_walks(test: &str, spec: ConstraintSpec, is_right: impl Fn(&str) -> bool) {
    let mut rng = fastrand::Rng::with_seed(seed(test));
    let matcher = matcher(spec.clone());
    let mut n_ended = 0;
    for n in 0..12 {
        let walked = walk(&matcher, &STARTER, &mut rng, 4 * n, 400).unwrap();
        if walked.is_ended {
            assert!(is_right(&walked.text), "{spec:?} gave {:?}", walked.text);
            n_ended += 1;
        }
    }
    assert!(n_ended >= 9, "{spec:?} ended only {n_ended} of 12 times");
}

#[test]
fn an_expression_is_matched_as_a_whole() {
    type Case = (&'static str, fn(&str) -> bool);
    let regexes: [Case; 6] = [
        (r"(0|[1-9][0-9]{0,8})\.[0-9]{2}", |text| {
            text.split_once('.')
                .is_some_and(|(whole, cents)| whole.parse::<u32>().is_ok() && cents.len() == 2)
        }),
        (r"^(yes|no)$", |text| text == "yes" || text == "no"),
        (r"[a-z]{3,10}@example\.(com|org)", |text| text.contains("@example.")),
        ("(a+)+$", |text| text.bytes().all(|b| b == b'a') && !text.is_empty()),
        (r"(?i)throng/\d", |text| text.to_lowercase().starts_with("throng/") && text.len() >= 8),
        ("", str::is_empty),
    ];
    for (regex, is_right) in regexes {
        all_walks("an_expression_is_matched_as_a_whole", ConstraintSpec::Regex(regex.to_owned()), is_right);
    }
    let date = matcher(ConstraintSpec::Regex(r"\d{4}-\d\d-\d\d".to_owned()));
    assert!(accepts(&date, "2024-02-29") && !accepts(&date, "2024-02-2") && !accepts(&date, " 2024-02-29"));
}

#[test]
fn an_expression_that_cannot_be_matched_is_refused() {
    let unclosed = refused(ConstraintSpec::Regex("(a".to_owned())).to_string();
    assert!(unclosed.contains("unclosed group"), "{unclosed}");
    for regex in ["[", "foo**(", "(?<=a)b", r"(a)\1", "a{2,1}", r"\p{Nope}", "(?=a)", "a\\"] {
        let error = refused(ConstraintSpec::Regex(regex.to_owned()));
        assert!(matches!(error, GrammarError::Invalid(_)), "{regex}: {error:?}");
    }
    for regex in [r"[^\s\S]", r"a[^\s\S]b", r"x*[a&&b]"] {
        let error = refused(ConstraintSpec::Regex(regex.to_owned()));
        assert!(matches!(error, GrammarError::Unsatisfiable(_)), "{regex}: {error:?}");
    }
}

#[test]
fn a_choice_gives_one_of_its_texts() {
    let choices = ["red", "reddish", "blue green", "\"quoted\"\n", "语言", "re"];
    let spec = ConstraintSpec::Choice(choices.map(str::to_owned).to_vec());
    all_walks("a_choice_gives_one_of_its_texts", spec.clone(), |text| choices.contains(&text));
    let matcher = matcher(spec);
    assert!(choices.iter().all(|choice| accepts(&matcher, choice)));
    assert!(!accepts(&matcher, "redd") && !accepts(&matcher, "") && !accepts(&matcher, "redre"));
    let error = refused(ConstraintSpec::Choice(Vec::new()));
    assert!(matches!(error, GrammarError::Unsatisfiable(_)), "{error:?}");
}

#[test]
fn llama_cpps_json_grammar_gives_json() {
    let spec = ConstraintSpec::from_grammar_text(JSON_GBNF.to_owned());
    assert!(matches!(spec, ConstraintSpec::Gbnf(_)));
    all_walks("llama_cpps_json_grammar_gives_json", spec.clone(), |text| {
        serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
    });
    let matcher = matcher(spec);
    for text in [r#"{}"#, r#"{"a": [1, -2.5e3, "x\n", {"b": null}], "c": true }"#] {
        assert!(accepts(&matcher, text), "{text}");
    }
    for text in ["[]", "{", r#"{"a"}"#, r#"{"a":1,}"#] {
        assert!(!accepts(&matcher, text), "{text}");
    }
}

#[test]
fn gbnf_means_what_llama_cpp_says() {
    type Case = (&'static str, &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 6] = [
        ("root ::= [a-z]+ \"b\"", &["ab", "abb", "zzzb"], &["a", "b", "abc"]),
        ("root ::= \"a\" | \"ab\" tail\ntail ::= \"c\"?", &["a", "ab", "abc"], &["ac", ""]),
        ("root ::= (a | b){2,3}\na ::= \"x\"\nb ::= \"y\"", &["xy", "yyx"], &["x", "xyxy"]),
        (
            "root ::= \"1. \" line \"\\n\" ([2-9] \". \" line \"\\n\")+\nline ::= [^\\n]+",
            &["1. a b\n2. c\n"],
            &["1. a\n"],
        ),
        ("root ::= \"(\" root \")\" | \"x\"", &["x", "((x))"], &["(x", "x)"]),
        (
            "root ::= e\ne ::= e \"+\" t | t\nt ::= [0-9]+ | \"(\" e \")\"",
            &["1+2+3", "(1+22)+3"],
            &["1+", "+1"],
        ),
    ];
    for (grammar, members, others) in cases {
        let matcher = matcher(ConstraintSpec::Gbnf(grammar.to_owned()));
        members.iter().for_each(|text| assert!(accepts(&matcher, text), "{grammar}: {text}"));
        others.iter().for_each(|text| assert!(!accepts(&matcher, text), "{grammar}: {text}"));
    }
}

#[test]
fn lark_grammars_are_read_as_they_are() {
    let grammar = "start: greeting \" \" NAME\ngreeting: \"hello\" | \"bye\"\nNAME: /[A-Z][a-z]{1,8}/\n";
    let spec = ConstraintSpec::from_grammar_text(grammar.to_owned());
    assert!(matches!(spec, ConstraintSpec::Lark(_)));
    let matcher = matcher(spec);
    assert!(accepts(&matcher, "hello Throng") && !accepts(&matcher, "hello throng"));
    for wrong in ["", "  \n", "begin: \"a\"", "start: missing", "start: \"a", "start: A\nA: A \"x\""] {
        let error = refused(ConstraintSpec::Lark(wrong.to_owned()));
        assert!(matches!(error, GrammarError::Invalid(_)), "{wrong}: {error:?}");
    }
    for endless in ["start: \"a\" start", "start: a\na: b\nb: a \"x\" | b"] {
        let error = refused(ConstraintSpec::Lark(endless.to_owned()));
        assert!(matches!(error, GrammarError::Unsatisfiable(_)), "{endless}: {error:?}");
    }
}

fn tag_matcher(tag: Value) -> GrammarMatcher {
    matcher(ConstraintSpec::StructuralTag(tag))
}

#[test]
fn tagged_parts_of_free_text_follow_their_schema() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false});
    let older = tag_matcher(json!({"type": "structural_tag", "triggers": ["<function="], "structures": [
        {"begin": "<function=weather>", "schema": schema, "end": "</function>"},
        {"begin": "<function=time>", "schema": {"type": "object", "additionalProperties": false}, "end": "</function>"},
    ]}));
    let content = json!({"type": "json_schema", "json_schema": schema});
    let newer = tag_matcher(json!({"type": "structural_tag", "format": {"type": "triggered_tags",
        "triggers": ["<function="], "tags": [
            {"begin": "<function=weather>", "content": content, "end": "</function>"},
            {"begin": "<function=time>", "content": {"type": "regex", "pattern": r"\{\}"}, "end": "</function>"},
    ]}}));
    for matcher in [older, newer] {
        for text in [
            "",
            "No tool is needed.",
            "Let me see. <function=weather>{\"city\":\"Paris\"}</function> Done",
            "<function=time>{}</function><function=weather>{\"city\": \"x\"}</function>",
            "a < b and <functional>",
        ] {
            assert!(accepts(&matcher, text), "{text}");
        }
        for text in [
            "<function=other>{}</function>",
            "x <function=weather>{\"town\":\"Paris\"}</function>",
            "x <function=weather>{\"city\":1}</function>",
            "x <function=time>{}",
        ] {
            assert!(!accepts(&matcher, text), "{text}");
        }
    }
}

#[test]
fn formats_of_structural_tags_combine() {
    let tag = |begin: &str, content: Value| json!({"type": "tag", "begin": begin, "content": content, "end": "</t>"});
    let any = json!({"type": "any_text"});
    let number = json!({"type": "regex", "pattern": "[0-9]+"});
    let format = |format: Value| tag_matcher(json!({"type": "structural_tag", "format": format}));
    let thinking = format(json!({"type": "sequence", "elements": [
        {"type": "tag", "begin": "<think>", "content": any, "end": "</think>"},
        {"type": "or", "elements": [{"type": "const_string", "value": "yes"}, number]},
    ]}));
    assert!(accepts(&thinking, "<think>a <b> c</think>yes") && accepts(&thinking, "<think></think>17"));
    assert!(!accepts(&thinking, "<think>a</think>no") && !accepts(&thinking, "yes"));
    let list = |more: Value| {
        let mut list =
            json!({"type": "tags_with_separator", "separator": ",", "tags": [tag("<t>", number.clone())]});
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format(list)
    };
    let many = list(json!({}));
    assert!(accepts(&many, "") && accepts(&many, "<t>1</t>,<t>22</t>") && !accepts(&many, "<t>1</t>,"));
    let one = list(json!({"at_least_one": true, "stop_after_first": true}));
    assert!(!accepts(&one, "") && accepts(&one, "<t>1</t>") && !accepts(&one, "<t>1</t>,<t>22</t>"));
}

#[test]
fn structural_tags_that_mean_nothing_are_refused() {
    for (tag, part) in [
        (json!({}), "'format'"),
        (json!([]), "'format'"),
        (json!({"format": {"type": "qwen_xml"}}), "qwen_xml"),
        (json!({"format": {"type": "tag", "begin": "a", "end": "b"}}), "content"),
        (json!({"format": {"type": "sequence", "elements": []}}), "elements"),
        (
            json!({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b"]}),
            "triggers",
        ),
        (
            json!({"structures": [{"begin": "<a>", "schema": {"not": {"const": 1}}, "end": "</a>"}], "triggers": ["<a"]}),
            "not",
        ),
        (json!({"structures": [], "triggers": ["<b"]}), "structures"),
    ] {
        let error = refused(ConstraintSpec::StructuralTag(tag.clone()));
        assert!(error.to_string().contains(part), "{tag}: {error}");
    }
}
