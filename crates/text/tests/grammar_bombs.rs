//! Constraints made to cost: each is refused with a typed error or compiled within bounds of memory, and what
//! compiles gives its first masks within bounds of memory too. Alone in its process, because it counts
//! allocations.

#[path = "integration/grammar/vocabularies.rs"]
mod vocabularies;

use std::alloc::System;
use std::time::Instant;

use serde_json::{Map, Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use throng_text::ToolCallFormat;
use throng_text::grammar::{CallableTool, ConstraintSpec, GrammarError, GrammarMatcher, ToolCallSpec};
use vocabularies::COMPILER;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that compiling may allocate, those that it frees again included.
const MAX_BYTES: usize = 64 << 20;

fn nested(open: &str, n: usize, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(n), close.repeat(n))
}

/// Schemas in which each refers to the one before as `make` says.
fn chain(n: usize, make: impl Fn(Value) -> Value) -> Value {
    let mut defs = Map::new();
    defs.insert("d0".to_owned(), json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    for idx in 1..n {
        defs.insert(format!("d{idx}"), make(json!({"$ref": format!("#/$defs/d{}", idx - 1)})));
    }
    json!({"$defs": defs, "$ref": format!("#/$defs/d{}", n - 1)})
}

fn deep(n: usize) -> Value {
    (0..n).fold(json!({"type": "string"}), |inner, _| json!({"properties": {"a": inner}, "required": ["a"]}))
}

fn schemas() -> Vec<(&'static str, Value)> {
    let texts = |n: usize| (0..n).map(|idx| format!("text number {idx}")).collect::<Vec<_>>();
    let properties = |n: usize| {
        let all: Map<String, Value> =
            (0..n).map(|idx| (format!("p{idx}"), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": all, "additionalProperties": false})
    };
    let patterns = |n: usize| {
        let all: Map<String, Value> =
            (0..n).map(|idx| (format!("^x{idx}.*y{{1,200}}$"), json!({}))).collect();
        json!({"type": "object", "patternProperties": all})
    };
    let any_of = |n: usize, depth: usize| {
        (0..depth).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": vec![inner; n]}))
    };
    vec![
        ("1,000 levels", deep(1000)),
        ("30 levels", deep(30)),
        ("a reference to itself", json!({"$ref": "#"})),
        (
            "a cycle of references",
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        ("allOf of itself", json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"})),
        ("1,000 references in a chain", chain(1000, |inner| json!({"type": "array", "items": inner}))),
        ("2,000 references in a chain", chain(2000, |inner| inner)),
        ("30 doublings by allOf", chain(30, |inner| json!({"allOf": [inner.clone(), inner]}))),
        ("30 doublings by anyOf", chain(30, |inner| json!({"anyOf": [inner.clone(), inner]}))),
        (
            "30 doublings by properties",
            chain(30, |inner| json!({"properties": {"a": inner.clone(), "b": inner}})),
        ),
        (
            "anyOf times anyOf",
            json!({"allOf": vec![json!({"anyOf": (0..30).map(|n| json!({"properties": {format!("p{n}"): {"type": "string"}}})).collect::<Vec<_>>()}); 6]}),
        ),
        ("maxItems of 2^64", json!({"type": "array", "maxItems": 18_446_744_073_709_551_616.0})),
        ("maxItems of 10^6", json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000})),
        ("minItems of 2^64", json!({"type": "array", "minItems": 18_446_744_073_709_551_616.0})),
        ("minItems of 10^4", json!({"type": "array", "items": {"type": "integer"}, "minItems": 10_000})),
        (
            "nested minItems",
            json!({"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000}}}),
        ),
        ("maxLength of 10^9", json!({"type": "string", "maxLength": 1_000_000_000})),
        ("minLength of 10^5", json!({"type": "string", "minLength": 100_000})),
        ("maxProperties of 10^6", json!({"type": "object", "maxProperties": 1_000_000})),
        ("minProperties of 10^4", json!({"type": "object", "minProperties": 10_000})),
        ("20,000 texts of an enum", json!({"enum": texts(20_000)})),
        ("5,000 texts of an enum", json!({"enum": texts(5000)})),
        ("a text of 5 MB in an enum", json!({"enum": ["x".repeat(5 << 20)]})),
        ("a text of 250 kB in an enum", json!({"enum": ["x".repeat(250_000)]})),
        ("10,000 properties", properties(10_000)),
        ("1,000 properties", properties(1000)),
        ("500 patternProperties", patterns(500)),
        ("40 patternProperties", patterns(40)),
        ("anyOf 2 to the 12th", any_of(2, 12)),
        ("anyOf of 3,000", any_of(3000, 1)),
        ("multipleOf of many digits", json!({"type": "number", "multipleOf": 0.000_000_123_457})),
        (
            "multipleOf of primes",
            json!({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}, {"multipleOf": 9949}]}),
        ),
        ("an integer range of 300 digits", json!({"type": "number", "minimum": -1e300, "maximum": 1e300})),
        ("nested quantifiers", json!({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"})),
        (
            "an intersection of patterns with different letters",
            json!({"type": "string", "allOf": (0..8_u8).map(|n| json!({"pattern": format!("^(.*{}.{{{}}})*$", char::from(b'a' + n), 10 + n)})).collect::<Vec<_>>()}),
        ),
        (
            "an intersection of patterns of a property",
            json!({"allOf": (0..8_u8).map(|n| json!({"properties": {"a": {"pattern": format!("^(.*{}.{{{}}})*$", char::from(b'a' + n), 10 + n)}}})).collect::<Vec<_>>()}),
        ),
        (
            "an intersection of patterns",
            json!({"allOf": (0..12).map(|n| json!({"pattern": format!("^(.*a.{{{}}})*$", 10 + n)})).collect::<Vec<_>>()}),
        ),
    ]
}

/// Expressions whose intersection has a derivative for each way to choose one of each.
fn suffixes(n: usize) -> Vec<String> {
    (0..n).map(|idx| format!("/(.*{}.{{{}}})*/", char::from(b'a' + idx as u8), 10 + idx)).collect()
}

/// Alternatives that begin with classes of which many overlap.
fn overlapping(step: usize) -> String {
    let one = |idx: usize| {
        let class =
            (char::from(b'a' + (idx * step % 12) as u8), char::from(b'm' + (idx * step / 12 % 13) as u8));
        format!("[{}-{}]{step}{idx}.*", class.0, class.1)
    };
    format!("/{}/", (0..150).map(one).collect::<Vec<_>>().join("|"))
}

fn texts() -> Vec<(&'static str, ConstraintSpec)> {
    let regex = |text: &str| ConstraintSpec::Regex(text.to_owned());
    let lark = |text: String| ConstraintSpec::Lark(text);
    let gbnf = |text: String| ConstraintSpec::Gbnf(text);
    let choices = |n: usize| ConstraintSpec::Choice((0..n).map(|idx| format!("choice {idx}")).collect());
    vec![
        ("a{1,1000000}", regex("a{1,1000000}")),
        ("nested repetitions", regex("((((a{1,100}){1,100}){1,100}){1,100}){1,100}")),
        ("repetitions of classes", regex(r"(\w{1,1000}\s{1,1000}){1,1000}")),
        ("Unicode classes", regex(r"[\p{L}\p{N}\p{S}&&[^\p{Lu}]]{1,500}(\p{Han}|\p{Greek}){5,500}")),
        ("nested quantifiers", regex("(((a*)*)*)*b")),
        ("a DFA of 2^100 states", regex("(a|b)*a(a|b){100}")),
        ("a conjunction of suffixes", regex("(.*a.{40}|.*b.{41}|.*c.{42}|.*d.{43}){1,50}")),
        ("100 kB", regex(&"ab?".repeat(33_000))),
        ("50 kB of options", regex(&"ab?c|".repeat(10_000))),
        ("10,000 parentheses", regex(&nested("(", 10_000, "a", ")"))),
        ("60 parentheses", regex(&nested("(a|", 60, "b", ")*"))),
        ("10^5 texts", choices(100_000)),
        ("10^4 texts", choices(10_000)),
        ("a text of 60 kB in Lark", lark(format!("start: \"{}\"", "x".repeat(60_000)))),
        ("a text of 1 MB", ConstraintSpec::Choice(vec!["x".repeat(1 << 20)])),
        (
            "a chain of 1,900 rules",
            lark(
                (0..1900).map(|n| format!("r{n}: r{}\n", n + 1)).collect::<String>()
                    + "r1900: \"a\"\nstart: r0",
            ),
        ),
        (
            "a chain of 1,900 terminals",
            lark(
                (0..1900).map(|n| format!("R{n}: R{}\n", n + 1)).collect::<String>()
                    + "R1900: \"a\"\nstart: R0",
            ),
        ),
        (
            "doublings of rules",
            lark(
                (0..40).map(|n| format!("r{n}: r{m} r{m} \"x\" | \"y\"\n", m = n + 1)).collect::<String>()
                    + "r40: \"a\"\nstart: r0",
            ),
        ),
        (
            "doublings of terminals",
            lark(
                (0..40).map(|n| format!("R{n}: R{m} R{m}\n", m = n + 1)).collect::<String>()
                    + "R40: \"a\"\nstart: R0",
            ),
        ),
        ("repetitions of a rule", lark("start: a{1,1000000}\na: \"x\" b\nb: \"y\" | a".to_owned())),
        (
            "nested repetitions of a rule",
            lark("start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: \"x\" | \"(\" c \")\"".to_owned()),
        ),
        ("an ambiguous rule", lark("start: e\ne: e e | \"a\" | e e e".to_owned())),
        ("parentheses in Lark", lark(format!("start: {}", nested("(", 5000, "\"a\"", ")")))),
        (
            "JSON in Lark",
            lark(format!("start: %json {}", nested("{\"properties\":{\"a\":", 5000, "{}", "}}"))),
        ),
        (
            "negations of terminals",
            lark("start: A\nA: ~(/(.*a.{30})/) & ~(/(.*b.{30})/) & /.{0,80}/".to_owned()),
        ),
        ("intersections of terminals", lark(format!("start: X\nX: {}", suffixes(8).join(" & ")))),
        (
            "intersections of named terminals",
            lark(
                (0..7).map(|n| format!("X{n}: X{} & {}\n", n + 1, suffixes(8)[n])).collect::<String>()
                    + &format!("X7: {}\nstart: X0", suffixes(8)[7]),
            ),
        ),
        ("three long operands", lark(format!("start: X\nX: {}", [1, 5, 7].map(overlapping).join(" & ")))),
        ("two long operands", lark(format!("start: X\nX: {}", [1, 5].map(overlapping).join(" & ")))),
        (
            "a schema with an intersection in Lark",
            lark(format!(
                "start: %json {}",
                json!({"type": "string", "allOf": (0..8_u8).map(|n| json!({"pattern": format!("^(.*{}.{{{}}})*$", char::from(b'a' + n), 10 + n)})).collect::<Vec<_>>()})
            )),
        ),
        ("parentheses in GBNF", gbnf(format!("root ::= {}", nested("(", 5000, "\"a\"", ")")))),
        ("repetitions in GBNF", gbnf("root ::= ((([a-z]{1,2000}){1,2000}){1,2000}){1,2000}".to_owned())),
        ("recursion in GBNF", gbnf("root ::= root root | \"a\" root? | \"(\" root{1,2000} \")\"".to_owned())),
        (
            "a large structural tag",
            ConstraintSpec::StructuralTag(
                json!({"structures": (0..600).map(|n| json!({"begin": format!("<f{n}>"), "schema": {"type": "object"}, "end": "</f>"})).collect::<Vec<_>>(), "triggers": ["<f"]}),
            ),
        ),
        (
            "a deep structural tag",
            ConstraintSpec::StructuralTag(
                json!({"format": (0..60).fold(json!({"type": "any_text"}), |inner, _| json!({"type": "sequence", "elements": [inner]}))}),
            ),
        ),
    ]
}

/// Tools whose arguments are text between tags.
fn tools() -> Vec<(&'static str, ConstraintSpec)> {
    let spec = |arguments: Value| {
        let tools = vec![CallableTool { name: "f".to_owned(), arguments }];
        let format = ToolCallFormat::Qwen3Coder;
        ConstraintSpec::ToolCalls(ToolCallSpec {
            format,
            tools,
            must_call: true,
            only_one: false,
            control: Vec::new(),
        })
    };
    let properties = |n: usize, one: &Value| -> Map<String, Value> {
        (0..n).map(|idx| (format!("p{idx}"), one.clone())).collect()
    };
    // Each refers to the next eight times.
    let mut defs = Map::new();
    for idx in 0..14 {
        let next = json!({"$ref": format!("#/$defs/d{}", idx + 1)});
        defs.insert(format!("d{idx}"), json!({"anyOf": vec![next; 8]}));
    }
    defs.insert("d14".to_owned(), json!({"type": ["string", "null"]}));
    let reference = json!({"anyOf": [{"$ref": "#/$defs/d0"}, {"type": "string"}]});
    vec![
        ("8^14 references of an argument", spec(json!({"properties": {"a": reference}, "$defs": defs}))),
        (
            "400 arguments with references to 400 schemas",
            spec(
                json!({"properties": properties(400, &json!({"type": "array", "items": {"$ref": "#/$defs/p0"}})),
                        "$defs": properties(400, &json!({"enum": (0..40).collect::<Vec<_>>()}))}),
            ),
        ),
        ("400 optional arguments", spec(json!({"properties": properties(400, &json!({"type": "string"}))}))),
        (
            "an intersection of patterns of an argument",
            spec(
                json!({"properties": {"a": {"allOf": (0..12).map(|n| json!({"type": "string", "pattern": format!("^(.*a.{{{}}})*$", 10 + n)})).collect::<Vec<_>>()}}}),
            ),
        ),
        (
            "a choice of exactly one of 40 patterns of an argument",
            spec(
                json!({"properties": {"a": {"type": "string", "oneOf": (0..40).map(|n| json!({"type": "string", "pattern": format!("a.{{{n}}}b")})).collect::<Vec<_>>()}}}),
            ),
        ),
    ]
}

#[test]
fn what_is_made_to_cost_is_refused_or_compiles_within_bounds() {
    let _ = &*COMPILER;
    let schemas = schemas().into_iter().map(|(name, schema)| (name, ConstraintSpec::JsonSchema(schema)));
    let mut too_large = Vec::new();
    let bombs: Vec<_> = schemas.chain(texts()).chain(tools()).collect();
    println!("{} bombs", bombs.len());
    assert!(bombs.len() >= 40);
    for (name, spec) in bombs {
        let region = Region::new(ALLOCATOR);
        let begun = Instant::now();
        let compiled = COMPILER.compile(&spec);
        let mut took = begun.elapsed();
        let n_bytes = region.change().bytes_allocated;
        for _ in 0..2 {
            let begun = Instant::now();
            let _ = COMPILER.compile(&spec);
            took = took.min(begun.elapsed());
        }
        let outcome = match &compiled {
            Ok(grammar) => {
                let matcher = GrammarMatcher::new(grammar.clone(), 1);
                let region = Region::new(ALLOCATOR);
                let begun = Instant::now();
                let (words, output) = (&mut vec![0; grammar.n_tokens().div_ceil(32)], &mut Vec::new());
                let mut outcome = Ok(());
                while outcome.is_ok() && output.len() < 20 {
                    outcome = matcher.mask(output, words);
                    let first = words.iter().position(|word| *word != 0).unwrap_or(0);
                    output.push(first as u32 * 32 + words[first].trailing_zeros().min(31));
                }
                assert!(!matches!(outcome, Err(GrammarError::Mismatch(_))), "{name}: {outcome:?}");
                // What is prescribed is found token by token, and each must not cost as much as all.
                let _ = matcher.forced(&[], &mut Vec::new());
                let n_bytes = region.change().bytes_allocated;
                if n_bytes > MAX_BYTES {
                    too_large.push(format!("{name}: masks allocate {n_bytes} bytes"));
                }
                let error = outcome.err().map(|error| error.to_string()).unwrap_or_default();
                format!("compiled; 20 masks {} ms, {} kB {error}", begun.elapsed().as_millis(), n_bytes >> 10)
            }
            Err(GrammarError::Internal(reason)) => panic!("{name}: {reason}"),
            Err(error) => format!("refused: {error:.120}"),
        };
        println!("{name}: {:.1} ms, {} kB: {outcome}", took.as_secs_f64() * 1e3, n_bytes >> 10);
        if n_bytes > MAX_BYTES {
            too_large.push(format!("{name}: compiling allocates {n_bytes} bytes"));
        }
    }
    assert!(too_large.is_empty(), "{too_large:#?}");
}
