//! JSON: every output is what an independent validator accepts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use throng_text::grammar::{ConstraintSpec, GrammarError, GrammarMatcher};

use super::vocabularies::{COMPILER, STARTER};
use super::walk::{accepts, matcher, seed, walk};

/// Groups of the JSON-Schema-Test-Suite.
fn suite() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/json_schemas/test_suite.jsonl");
    let lines = std::fs::read_to_string(path).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether a refusal names what it is about.
fn names_its_reason(error: &GrammarError) -> bool {
    match error {
        GrammarError::UnsupportedKeyword { keyword, path } => !keyword.is_empty() && path.starts_with('#'),
        GrammarError::Unsupported(reason) => reason.contains('\''),
        GrammarError::Unsatisfiable(_) | GrammarError::Invalid(_) | GrammarError::TooComplex(_) => true,
        _ => false,
    }
}

/// Whether a number in it has more digits than the validator's double precision tells apart.
fn has_long_number(json: &str) -> bool {
    json.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 15)
}

/// Whether a decimal number is a multiple of another, in integers: in the validator's doubles -4 is no
/// multiple of 0.0001.
fn is_multiple(number: &str, divisor: &str) -> Option<bool> {
    let scaled = |text: &str, n_places: usize| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        format!("{whole}{fraction:0<n_places$}").parse::<i128>().ok()
    };
    let n_places = |text: &str| text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let n_places = n_places(number).max(n_places(divisor));
    Some(scaled(number, n_places)? % scaled(divisor, n_places)? == 0)
}

#[test]
fn what_satisfies_a_schema_of_the_test_suite_validates() {
    let mut rng = fastrand::Rng::with_seed(seed("what_satisfies_a_schema_of_the_test_suite_validates"));
    let (mut n_accepted, mut n_ending, mut n_instances) = (0, 0, 0);
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let suite = suite();
    for group in &suite {
        let (name, schema) = (&group["group"], &group["schema"]);
        let grammar = match COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert!(names_its_reason(&error), "{name}: {error:?}");
                println!("refused: {name}: {error}");
                let reason = match error {
                    GrammarError::UnsupportedKeyword { keyword, .. } => keyword,
                    GrammarError::Unsatisfiable(_) => "nothing satisfies it".to_owned(),
                    error => error.to_string(),
                };
                *refused.entry(reason).or_default() += 1;
                continue;
            }
        };
        n_accepted += 1;
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let matcher = GrammarMatcher::new(grammar, 1);
        let mut n_ended = 0;
        for n in 0..4 {
            let walked = walk(&matcher, &STARTER, &mut rng, 10 * n, 400);
            let walked = walked.unwrap_or_else(|error| panic!("{name}: {error}"));
            if walked.is_ended {
                let value: Value = serde_json::from_str(&walked.text)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {:?}", walked.text));
                let divisor = schema["multipleOf"].as_f64().filter(|divisor| divisor.fract() != 0.0);
                let is_beyond_doubles = has_long_number(&walked.text)
                    || divisor
                        .is_some_and(|divisor| is_multiple(&walked.text, &divisor.to_string()) == Some(true));
                let is_right = validator.is_valid(&value) || is_beyond_doubles;
                assert!(is_right, "{name}: {schema} does not allow {}", walked.text);
                n_ended += 1;
            }
        }
        n_instances += n_ended;
        if n_ended > 0 { n_ending += 1 } else { println!("never ended: {name}") }
    }
    println!(
        "of {} schemas {n_accepted} are accepted, {n_ending} of them gave instances: {n_instances}, all valid",
        suite.len()
    );
    println!("refused, by reason: {refused:#?}");
    assert!(n_accepted >= 220 && n_ending * 100 >= n_accepted * 98, "{n_ending} of {n_accepted}");
}

/// Instances of the suite that are not valid are not valid here either, in whatever spelling.
#[test]
fn no_invalid_instance_of_the_test_suite_is_accepted() {
    let mut n_checked = 0;
    for group in suite() {
        let Ok(grammar) = COMPILER.compile(&ConstraintSpec::JsonSchema(group["schema"].clone())) else {
            continue;
        };
        let matcher = GrammarMatcher::new(grammar, 1);
        for instance in group["invalid"].as_array().unwrap() {
            assert!(!accepts(&matcher, &instance.to_string()), "{}: {instance}", group["group"]);
            n_checked += 1;
        }
    }
    assert!(n_checked > 300, "{n_checked}");
}

#[test]
fn ordinary_schemas_give_what_their_authors_mean() {
    let person = json!({"$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false}},
        "type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 150}, {"type": "null"}]},
        "home": {"$ref": "#/$defs/address"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
        "required": ["name", "age", "home"], "additionalProperties": false});
    let person = matcher(ConstraintSpec::JsonSchema(person));
    assert!(accepts(&person, r#"{"name": "Ada", "age": 36, "home": {"street": "x", "zip": "12345"}}"#));
    assert!(accepts(
        &person,
        r#"{"name":"Ada","age":null,"home":{"street":"x","zip":"12345"},"tags":["a","b"]}"#
    ));
    assert!(!accepts(&person, r#"{"name":"","age":36,"home":{"street":"x","zip":"12345"}}"#));
    assert!(!accepts(&person, r#"{"name":"Ada","age":36,"home":{"street":"x","zip":"1234"}}"#));
    assert!(!accepts(&person, r#"{"name":"Ada","age":36}"#));
    let tree = json!({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value", "children"],
        "additionalProperties": false}}, "$ref": "#/$defs/node"});
    let tree = matcher(ConstraintSpec::JsonSchema(tree));
    assert!(accepts(&tree, r#"{"value":1,"children":[{"value":2,"children":[]}]}"#));
    assert!(!accepts(&tree, r#"{"value":1}"#));
    let shapes = json!({"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"], "additionalProperties": false},
        {"type": "object", "properties": {"kind": {"const": "square"}, "a": {"type": "number"}},
            "required": ["kind", "a"], "additionalProperties": false}]});
    let shapes = matcher(ConstraintSpec::JsonSchema(shapes));
    assert!(
        accepts(&shapes, r#"{"kind":"circle","r":1.5}"#) && !accepts(&shapes, r#"{"kind":"circle","a":1.5}"#)
    );
    let any = matcher(ConstraintSpec::JsonSchema(Value::Bool(true)));
    assert!(accepts(&any, "[1, \"x\"]") && accepts(&any, "null") && !accepts(&any, "x"));
    let object = matcher(ConstraintSpec::JsonObject);
    assert!(accepts(&object, "{}") && accepts(&object, r#"{"a": [1]}"#) && !accepts(&object, "[]"));
    assert!(!accepts(&object, &format!("{{{}}}", " ".repeat(200))), "white space has a bound");
}

#[test]
fn unsupported_keywords_are_refused_by_name() {
    for (keyword, value) in [
        ("not", json!({"const": "a"})),
        ("contains", json!({"type": "null"})),
        ("uniqueItems", json!(true)),
        ("propertyNames", json!({"maxLength": 3})),
        ("dependentRequired", json!(1)),
        ("dependentSchemas", json!([])),
        ("dependencies", json!({"a": 1})),
        ("$dynamicRef", json!("#a")),
        ("$recursiveRef", json!("#")),
    ] {
        let nested = json!({"properties": {"a/b": {"anyOf": [{"type": "null"}, {keyword: value}]}}});
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(nested)).map(drop).unwrap_err();
        let path = "#/properties/a/b/anyOf/1".to_owned();
        assert_eq!(error, GrammarError::UnsupportedKeyword { keyword: keyword.to_owned(), path });
    }
    for (schema, keyword) in [
        (json!({"if": {"const": 1}, "then": {"type": "integer"}}), "if"),
        (json!({"unevaluatedItems": false, "anyOf": [{"prefixItems": [{}]}]}), "unevaluatedItems"),
        (
            json!({"unevaluatedProperties": false, "$ref": "#/$defs/a", "$defs": {"a": {}}}),
            "unevaluatedProperties",
        ),
        (json!({"contains": {"type": "null"}, "minContains": 2}), "contains"),
    ] {
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(schema)).map(drop).unwrap_err();
        assert!(
            matches!(&error, GrammarError::UnsupportedKeyword { keyword: found, .. } if found == keyword),
            "{error:?}"
        );
    }
    // What only looks like a keyword is none.
    for schema in [
        json!({"properties": {"not": {}, "if": {}}}),
        json!({"enum": [{"not": 1}]}),
        json!({"uniqueItems": false}),
        json!({"type": "integer", "format": "int64"}),
        json!({"type": "string", "format": "password"}),
    ] {
        COMPILER.compile(&ConstraintSpec::JsonSchema(schema)).unwrap();
    }
    // What a reference leads to outside of the places where schemas stand is read all the same.
    let hidden = json!({"$ref": "#/x/y", "x": {"y": {"not": {"const": 1}}}});
    let error = COMPILER.compile(&ConstraintSpec::JsonSchema(hidden)).map(drop).unwrap_err();
    assert!(
        matches!(&error, GrammarError::UnsupportedKeyword { keyword, .. } if keyword == "not"),
        "{error:?}"
    );
}

/// What llguidance does not know is said otherwise, and means the same.
#[test]
fn keywords_that_can_be_said_otherwise_are_enforced() {
    type Case = (Value, &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 6] = [
        (
            json!({"$defs": {
                "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
                        "required": ["kind", "lives"], "additionalProperties": false},
                "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"],
                        "additionalProperties": false}},
                "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
                "discriminator": {"propertyName": "kind"}}),
            &[r#"{"kind":"cat","lives":9}"#, r#"{"kind":"dog"}"#],
            &[r#"{"kind":"dog","lives":9}"#, r#"{"kind":"cat"}"#],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "dependentRequired": {"a": ["b"]}, "additionalProperties": false}),
            &[r#"{"a":1,"b":2}"#, r#"{"b":2}"#, "{}"],
            &[r#"{"a":1}"#],
        ),
        (
            json!({"type": ["string", "integer"], "if": {"type": "string"}, "then": {"maxLength": 1},
                "else": {"maximum": 5}}),
            &["\"a\"", "5"],
            &["\"ab\"", "6"],
        ),
        (
            json!({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a"]},
                "unevaluatedProperties": false}),
            &["{}", r#"{"b":1}"#],
            &[r#"{"a":1}"#, r#"{"c":1}"#],
        ),
        (json!({"not": {"type": ["object", "string"]}}), &["1", "[]", "null"], &["{}", "\"a\""]),
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1, "uniqueItems": true}),
            &["[]", "[1]"],
            &["[1,1]"],
        ),
    ];
    for (schema, valid, invalid) in cases {
        let validator = jsonschema::validator_for(&schema).unwrap();
        let is_valid = |text: &str| validator.is_valid(&serde_json::from_str(text).unwrap());
        let matcher = matcher(ConstraintSpec::JsonSchema(schema.clone()));
        for text in valid {
            assert!(is_valid(text) && accepts(&matcher, text), "{schema} allows {text}");
        }
        for text in invalid {
            assert!(!is_valid(text) && !accepts(&matcher, text), "{schema} does not allow {text}");
        }
    }
}

#[test]
fn what_no_instance_satisfies_is_refused() {
    for schema in [
        json!(false),
        json!({"enum": []}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "string", "const": 1}),
        json!({"type": "string", "pattern": "^a+$", "allOf": [{"pattern": "^b+$"}]}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a{9}$", "maxLength": 3}}, "required": ["a"]}),
        json!({"type": "array", "items": false, "minItems": 1}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"not": {}}),
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    ] {
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())).map(drop);
        let error = error.expect_err(&schema.to_string());
        assert!(matches!(error, GrammarError::Unsatisfiable(_)), "{schema}: {error:?}");
    }
}

#[test]
fn what_is_no_schema_is_refused() {
    for schema in [
        json!(1),
        json!([]),
        json!({"type": "strin"}),
        json!({"type": 1}),
        json!({"properties": []}),
        json!({"properties": {"a": 1}}),
        json!({"anyOf": {}}),
        json!({"items": "x"}),
        json!({"required": "a"}),
        json!({"minLength": -1}),
        json!({"minLength": "1"}),
        json!({"maxItems": 1.5}),
        json!({"pattern": "("}),
        json!({"$ref": 1}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"$ref": "missing.json"}),
        json!({"$ref": "http://[::1"}),
        json!({"enum": 1}),
    ] {
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())).map(drop);
        let error = error.expect_err(&schema.to_string());
        let expected = matches!(error, GrammarError::Invalid(_) | GrammarError::Unsupported(_));
        assert!(expected, "{schema}: {error:?}");
    }
}
