//! JSON: every output is what an independent validator accepts.

use std::path::Path;

use serde_json::{Value, json};
use throng_text::grammar::{ConstraintSpec, GrammarError, GrammarMatcher};

use crate::vocabularies::{COMPILER, STARTER};
use crate::walk::{accepts, matcher, seed, walk};

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

#[test]
fn what_satisfies_a_schema_of_the_test_suite_validates() {
    let mut rng = fastrand::Rng::with_seed(seed("what_satisfies_a_schema_of_the_test_suite_validates"));
    let (mut n_accepted, mut n_ending) = (0, 0);
    for group in suite() {
        let (name, schema) = (&group["group"], &group["schema"]);
        let grammar = match COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())) {
            Ok(grammar) => grammar,
            Err(error) => {
                assert!(names_its_reason(&error), "{name}: {error:?}");
                println!("refused: {name}: {error}");
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
                let is_beyond_doubles = has_long_number(&walked.text)
                    || schema["multipleOf"].as_f64().is_some_and(|divisor| divisor < 1e-6);
                let is_right = validator.is_valid(&value) || is_beyond_doubles;
                assert!(is_right, "{name}: {schema} does not allow {}", walked.text);
                n_ended += 1;
            }
        }
        if n_ended > 0 { n_ending += 1 } else { println!("never ended: {name}") }
    }
    println!("{n_accepted} schemas accepted, {n_ending} gave instances");
    assert!(n_accepted >= 180 && n_ending * 100 >= n_accepted * 98, "{n_ending} of {n_accepted}");
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
    for keyword in [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
    ] {
        let nested = json!({"properties": {"a/b": {"anyOf": [{"type": "null"}, {keyword: true}]}}});
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(nested)).map(drop).unwrap_err();
        let path = "#/properties/a/b/anyOf/1".to_owned();
        assert_eq!(error, GrammarError::UnsupportedKeyword { keyword: keyword.to_owned(), path });
    }
    // What only looks like a keyword is none.
    for schema in [
        json!({"properties": {"not": {}, "if": {}}}),
        json!({"enum": [{"not": 1}]}),
        json!({"uniqueItems": false}),
    ] {
        COMPILER.compile(&ConstraintSpec::JsonSchema(schema)).unwrap();
    }
    // What a reference leads to outside of the places where schemas stand is read all the same.
    let hidden = json!({"$ref": "#/x/y", "x": {"y": {"not": {}}}});
    let error = COMPILER.compile(&ConstraintSpec::JsonSchema(hidden)).map(drop).unwrap_err();
    assert!(
        matches!(&error, GrammarError::UnsupportedKeyword { keyword, .. } if keyword == "not"),
        "{error:?}"
    );
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
