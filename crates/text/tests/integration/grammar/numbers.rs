//! Numbers in schemas: what may be written is compared with the schema digit by digit, without doubles.

use serde_json::{Value, json};
use throng_text::ToolCallFormat;
use throng_text::exact_number;
use throng_text::grammar::{CallableTool, ConstraintSpec, GrammarError, GrammarMatcher, ToolCallSpec};

use super::vocabularies::{COMPILER, STARTER};
use super::walk::{accepts, next, seed, tries};

/// Digits before and after the point of a [`Fixed`].
const N_DIGITS: usize = 430;

/// A number as a sign and digits of fixed count: a different way to compare than the one that is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fixed {
    is_negative: bool,
    digits: Vec<u8>,
}

impl Fixed {
    fn new(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().unwrap();
        let unsigned = mantissa.trim_start_matches('-');
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let mut digits = vec![0; 2 * N_DIGITS];
        let first = N_DIGITS as i64 - exponent - whole.len() as i64;
        for (idx, digit) in whole.bytes().chain(fraction.bytes()).enumerate().filter(|one| one.1 != b'0') {
            digits[usize::try_from(first + idx as i64).unwrap()] = digit - b'0';
        }
        let is_zero = digits.iter().all(|digit| *digit == 0);
        Self { is_negative: mantissa.starts_with('-') && !is_zero, digits }
    }

    fn is_below(&self, other: &Self) -> bool {
        match (self.is_negative, other.is_negative) {
            (false, false) => self.digits < other.digits,
            (true, true) => self.digits > other.digits,
            (is_negative, _) => is_negative,
        }
    }

    fn is_integer(&self) -> bool {
        self.digits[N_DIGITS..].iter().all(|digit| *digit == 0)
    }

    fn is_multiple_of(&self, divisor: &Self) -> bool {
        let last = divisor.digits.iter().rposition(|digit| *digit != 0).unwrap();
        if self.digits[last + 1..].iter().any(|digit| *digit != 0) {
            return false;
        }
        let divisor =
            divisor.digits[..=last].iter().fold(0, |sum: u128, digit| sum * 10 + u128::from(*digit));
        self.digits[..=last].iter().fold(0, |rest: u128, digit| (rest * 10 + u128::from(*digit)) % divisor)
            == 0
    }

    /// Its shortest text without a power of ten.
    fn plain(&self) -> String {
        let text = |digits: &[u8]| digits.iter().map(|digit| char::from(b'0' + digit)).collect::<String>();
        let (whole, fraction) = self.digits.split_at(N_DIGITS);
        let whole = text(whole).trim_start_matches('0').to_owned();
        let fraction = text(fraction).trim_end_matches('0').to_owned();
        let sign = if self.is_negative { "-" } else { "" };
        let whole = if whole.is_empty() { "0" } else { &whole };
        if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
    }
}

/// The keywords of one schema, as text.
type Keywords = Vec<(&'static str, String)>;

fn json_of(keywords: &Keywords) -> String {
    let members: Vec<String> = keywords.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

/// Whether a number satisfies the keywords.
fn satisfies(number: &Fixed, keywords: &Keywords) -> bool {
    keywords.iter().all(|(name, value)| match *name {
        "type" => value == "\"number\"" || number.is_integer(),
        "minimum" => !number.is_below(&Fixed::new(value)),
        "exclusiveMinimum" => Fixed::new(value).is_below(number),
        "maximum" => !Fixed::new(value).is_below(number),
        "exclusiveMaximum" => number.is_below(&Fixed::new(value)),
        "multipleOf" => number.is_multiple_of(&Fixed::new(value)),
        "const" => *number == Fixed::new(value),
        "enum" => values(value).any(|one| *number == Fixed::new(one)),
        _ => true,
    })
}

fn values(list: &str) -> impl Iterator<Item = &str> {
    list.trim_matches(['[', ']']).split(", ")
}

const EXTREMES: &[&str] = &[
    "0",
    "-0",
    "-0.0",
    "0.0",
    "1",
    "-1",
    "10",
    "9",
    "99",
    "100",
    "1000",
    "0.1",
    "0.5",
    "-0.5",
    "0.25",
    "1.5",
    "1e0",
    "1e5",
    "1.5e3",
    "12.5e-3",
    "1E+2",
    "-9223372036854775808",
    "-9223372036854775807",
    "-9223372036854775809",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740993",
    "2512292042121000001",
    "4294967295",
    "4294967296",
    "1e-5",
    "1e15",
    "1e19",
    "-1e19",
    "-1e30",
    "1e22",
    "3.4028235e38",
    "-3.4028235e38",
    "1.7976931348623157e308",
    "-1.7976931348623157e308",
    "4.9e-324",
    "1e300",
    "0.30000000000000004",
    "0.1000000000000000055511151231257827",
    "123456789012345678901234567890.123456789",
];

fn number(rng: &mut fastrand::Rng) -> String {
    let digits = |n: usize, rng: &mut fastrand::Rng| -> String {
        let only_nines = rng.u8(..8) == 0;
        (0..n).map(|_| char::from(b'0' + if only_nines { 9 } else { rng.u8(..10) })).collect()
    };
    match rng.u8(..10) {
        0..=3 => EXTREMES[rng.usize(..EXTREMES.len())].to_owned(),
        4..=5 => rng.i32(-120..120).to_string(),
        6 => format!("{}.{}", rng.i32(-20..20), rng.u8(..100)),
        _ => {
            let sign = if rng.bool() { "-" } else { "" };
            let n_whole = rng.usize(1..28);
            let whole = digits(n_whole, rng);
            let whole = whole.trim_start_matches('0');
            let whole = if whole.is_empty() { "0" } else { whole };
            let n_fraction = rng.usize(..14);
            let fraction =
                if rng.bool() { String::new() } else { format!(".{}", digits(n_fraction + 1, rng)) };
            let exponent = if rng.u8(..6) == 0 { format!("e{}", rng.i32(-30..30)) } else { String::new() };
            format!("{sign}{whole}{fraction}{exponent}")
        }
    }
}

fn keywords(rng: &mut fastrand::Rng) -> Keywords {
    let mut all = Keywords::new();
    match rng.u8(..3) {
        0 => all.push(("type", "\"integer\"".to_owned())),
        1 => all.push(("type", "\"number\"".to_owned())),
        _ => {}
    }
    match rng.u8(..8) {
        0 => all.push(("const", number(rng))),
        1 => {
            let n = rng.usize(1..4);
            let list: Vec<String> = (0..n).map(|_| number(rng)).collect();
            all.push(("enum", format!("[{}]", list.join(", "))));
        }
        _ => {}
    }
    for name in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        if rng.u8(..5) < 2 {
            all.push((name, number(rng)));
        }
    }
    if rng.u8(..5) == 0 {
        let divisors = [
            "1", "2", "3", "7", "10", "0.1", "0.25", "0.01", "1e-3", "1e-10", "15e2", "0.5", "1e20", "2.5",
            "12",
        ];
        all.push(("multipleOf", divisors[rng.usize(..divisors.len())].to_owned()));
    }
    all
}

/// Draws an output of at most 120 tokens; `None` where it did not end, or became too complex.
fn draw(matcher: &GrammarMatcher, rng: &mut fastrand::Rng) -> Option<String> {
    let mut tokens: Vec<u32> = Vec::new();
    let patience = rng.usize(..25);
    while tokens.len() < 120 {
        let choices = match next(matcher, &tokens) {
            Err(GrammarError::TooComplex(_)) => return None,
            choices => choices.unwrap(),
        };
        let ends = matcher.grammar().end_tokens();
        let others: Vec<u32> = choices.iter().copied().filter(|token| !ends.contains(token)).collect();
        let may_end = others.len() < choices.len();
        if may_end && (tokens.len() >= patience || others.is_empty() || rng.u8(..4) == 0) {
            return Some(STARTER.decode(&tokens, false).trim().to_owned());
        }
        tokens.push(others[rng.usize(..others.len())]);
    }
    None
}

/// Numbers at and around those of a schema.
fn candidates(all: &[Keywords]) -> Vec<Fixed> {
    let mut found = Vec::new();
    for (name, value) in all.iter().flatten().filter(|(name, _)| *name != "type") {
        let texts: Vec<&str> = if *name == "enum" { values(value).collect() } else { vec![value] };
        for text in texts {
            let number = Fixed::new(text);
            let plain = number.plain();
            found.push(number);
            found.push(Fixed::new(&format!("-{}", plain.trim_start_matches('-'))));
            found.push(Fixed::new(plain.trim_start_matches('-')));
            // The last digit more, less, and digits beyond it.
            for last in b'0'..=b'9' {
                let mut other = plain.clone().into_bytes();
                *other.last_mut().unwrap() = last;
                found.push(Fixed::new(std::str::from_utf8(&other).unwrap()));
            }
            let more = if plain.contains('.') { format!("{plain}1") } else { format!("{plain}.01") };
            found.push(Fixed::new(&more));
            found.push(Fixed::new(&format!("{}0", plain.split('.').next().unwrap())));
        }
    }
    found.push(Fixed::new("0"));
    found.push(Fixed::new("7"));
    found
}

#[test]
fn numbers_are_within_their_schemas_digit_by_digit() {
    let seed = seed("numbers_are_within_their_schemas_digit_by_digit");
    let mut rng = fastrand::Rng::with_seed(seed);
    let n_schemas = std::env::var("THRONG_NUMBER_SCHEMAS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let (mut n_compiled, mut n_drawn, mut n_accepted, mut n_unsatisfiable, mut n_complex) = (0, 0, 0, 0, 0);
    for _ in 0..n_schemas {
        let all: Vec<Keywords> = match rng.u8(..6) {
            0 => vec![keywords(&mut rng), keywords(&mut rng)],
            1 => vec![keywords(&mut rng), keywords(&mut rng), keywords(&mut rng)],
            _ => vec![keywords(&mut rng)],
        };
        let parts: Vec<String> = all.iter().map(json_of).collect();
        let is_number = all.iter().flatten().any(|(name, _)| matches!(*name, "type" | "const" | "enum"));
        // Without a type, other values satisfy conditions on numbers too.
        let parts =
            if is_number { parts } else { vec![parts.join(", "), "{\"type\": \"number\"}".to_owned()] };
        let text = if parts.len() == 1 {
            parts[0].clone()
        } else {
            format!("{{\"allOf\": [{}]}}", parts.join(", "))
        };
        let schema = exact_number::parse(&text).unwrap();
        let candidates = candidates(&all);
        let expected = |number: &Fixed| all.iter().all(|keywords| satisfies(number, keywords));
        let matcher = match COMPILER.compile(&ConstraintSpec::JsonSchema(schema)) {
            Ok(grammar) => GrammarMatcher::new(grammar, 1),
            Err(GrammarError::Unsatisfiable(_)) => {
                let fitting = candidates.iter().find(|number| expected(number));
                assert!(fitting.is_none(), "{text} allows {}", fitting.unwrap().plain());
                n_unsatisfiable += 1;
                continue;
            }
            Err(GrammarError::TooComplex(_)) => {
                n_complex += 1;
                continue;
            }
            Err(error) => panic!("{text}: {error:?}"),
        };
        n_compiled += 1;
        for _ in 0..3 {
            let Some(drawn) = draw(&matcher, &mut rng) else { continue };
            assert!(serde_json::from_str::<&serde_json::value::RawValue>(&drawn).is_ok(), "{text}: {drawn}");
            if Fixed::is_readable(&drawn) {
                assert!(expected(&Fixed::new(&drawn)), "{text} does not allow {drawn}");
                n_drawn += 1;
            }
        }
        // The numbers of the schema come first in each group.
        let n_kept = candidates.len().div_ceil(15);
        for (idx, candidate) in candidates.into_iter().enumerate() {
            let plain = candidate.plain();
            if idx % 15 != 0 && rng.usize(..n_kept) > 0 || plain.len() > 60 && rng.u8(..10) > 0 {
                continue;
            }
            match tries(&matcher, &plain) {
                Err(GrammarError::TooComplex(_)) => {
                    n_complex += 1;
                    break;
                }
                accepted => assert_eq!(accepted.unwrap(), expected(&candidate), "{text} and {plain}"),
            }
            n_accepted += usize::from(expected(&candidate));
        }
    }
    println!(
        "{n_compiled} compiled, {n_unsatisfiable} unsatisfiable, {n_complex} too complex; {n_drawn} drawn, {n_accepted} accepted"
    );
    assert!(n_compiled * 5 > n_schemas && n_drawn * 2 > n_compiled && n_complex * 5 < n_schemas);
}

impl Fixed {
    /// Whether a drawn number has few enough digits.
    fn is_readable(text: &str) -> bool {
        let exponent = text.split_once(['e', 'E']).map_or(Ok(0), |(_, exponent)| exponent.parse::<i64>());
        text.len() < 300 && exponent.is_ok_and(|exponent| exponent.abs() < 100)
    }
}

fn matcher_of(schema: &str) -> GrammarMatcher {
    let schema = exact_number::parse(schema).unwrap();
    let grammar = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone()));
    GrammarMatcher::new(grammar.unwrap_or_else(|error| panic!("{schema}: {error}")), 1)
}

#[test]
fn numbers_beyond_doubles_are_written_with_their_own_digits() {
    for (schema, right, wrong) in [
        (
            r#"{"const": 2512292042121000001}"#,
            vec!["2512292042121000001"],
            vec!["2512292042121000000", "2512292042121000002"],
        ),
        (r#"{"const": -9223372036854775808}"#, vec!["-9223372036854775808"], vec!["9223372036854775808"]),
        (
            r#"{"enum": ["x", -9223372036854775807, null]}"#,
            vec!["-9223372036854775807", "\"x\"", "null"],
            vec!["-9223372036854775808"],
        ),
        (r#"{"enum": [9007199254740993]}"#, vec!["9007199254740993"], vec!["9007199254740992"]),
        (
            r#"{"const": 123456789012345678901234567890}"#,
            vec!["123456789012345678901234567890"],
            vec!["123456789012345680000000000000"],
        ),
        (r#"{"const": 0.12345678901234567890}"#, vec!["0.1234567890123456789"], vec!["0.12345678901234568"]),
        (
            r#"{"const": [1, {"a": 9007199254740993, "b": "x"}]}"#,
            vec![r#"[1,{"a":9007199254740993,"b":"x"}]"#],
            vec![r#"[1,{"a":9007199254740992,"b":"x"}]"#, "[1]"],
        ),
        (
            r#"{"enum": [{"a": [1]}, [], 2, true]}"#,
            vec![r#"{"a":[1]}"#, "[]", "2", "true"],
            vec!["[1]", "3", "false", r#"{"a":[]}"#],
        ),
        (r#"{"const": 1.50}"#, vec!["1.5"], vec!["1", "1.51"]),
        (r#"{"const": 1e300}"#, vec!["1e300"], vec!["1e301"]),
        (r#"{"type": "integer", "enum": [1.0, 2.5, 3]}"#, vec!["1", "3"], vec!["2", "2.5"]),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740993}"#,
            vec!["9007199254740993"],
            vec!["9007199254740992", "9007199254740994"],
        ),
        (
            r#"{"type": "integer", "minimum": -1e30, "maximum": -1e19}"#,
            vec!["-10000000000000000000", "-999999999999999999999999"],
            vec!["-9999999999999999999", "0", "1"],
        ),
        (
            r#"{"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}"#,
            vec!["0", "-9223372036854775808", "9223372036854775807"],
            vec!["9223372036854775808", "-9223372036854775809"],
        ),
        (
            r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}"#,
            vec!["18446744073709551615"],
            vec!["18446744073709551616", "-1"],
        ),
        (
            r#"{"type": "number", "minimum": -3.4028235e38, "maximum": 3.4028235e38}"#,
            vec!["1.5", "-340282350000000000000000000000000000000"],
            vec!["340282350000000000000000000000000000001"],
        ),
        (
            r#"{"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}"#,
            vec!["1", "-2.5"],
            vec!["1e5"],
        ),
        (
            r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}"#,
            vec!["0.5", "0.0001"],
            vec!["0", "0.51"],
        ),
        (r#"{"type": "number", "minimum": 0, "exclusiveMinimum": true}"#, vec!["0.1"], vec!["0", "0.0"]),
        (r#"{"type": "integer", "multipleOf": 1000000}"#, vec!["0", "5000000"], vec!["500000"]),
        (r#"{"type": "number", "multipleOf": 0.07}"#, vec!["0.07", "0.7", "7", "0.14"], vec!["0.08", "0.1"]),
        (r#"{"type": ["integer", "string"], "minimum": 5}"#, vec!["5", "\"a\""], vec!["4", "5.5"]),
        (r#"{"minimum": 5}"#, vec!["5", "\"a\"", "null", "[4]"], vec!["4"]),
        (
            r##"{"$ref": "#/x/y", "x": {"y": {"const": -9223372036854775808}}}"##,
            vec!["-9223372036854775808"],
            vec!["-9223372036854776000"],
        ),
        (
            r##"{"$defs": {"n": {"minimum": 5}}, "allOf": [{"$ref": "#/$defs/n"}, {"maximum": 6}, {"type": "integer"}]}"##,
            vec!["5", "6"],
            vec!["4", "7"],
        ),
    ] {
        let matcher = matcher_of(schema);
        for text in right {
            assert!(accepts(&matcher, text), "{schema} allows {text}");
        }
        for text in wrong {
            assert!(!accepts(&matcher, text), "{schema} does not allow {text}");
        }
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_place() {
    for (schema, expected) in [
        (r#"{"properties": {"a": {"minimum": "1"}}}"#, "'#/properties/a/minimum'"),
        (r#"{"properties": {"a": {"multipleOf": 0}}}"#, "'#/properties/a/multipleOf'"),
        (r#"{"properties": {"a": {"multipleOf": -1}}}"#, "'#/properties/a/multipleOf'"),
        (r#"{"properties": {"a": {"multipleOf": 123457e-9}}}"#, "'#/properties/a/multipleOf'"),
        (r#"{"properties": {"a": {"multipleOf": 3e-20}}}"#, "'#/properties/a/multipleOf'"),
        (r#"{"properties": {"a": {"minimum": 1e-500}}}"#, "'#/properties/a/minimum'"),
        (r#"{"properties": {"a": {"const": 1e-500}}}"#, "'#/properties/a/const'"),
        (
            r#"{"properties": {"a": {"pattern": "^(?=.*\\d).{3,8}$"}}}"#,
            "look-around in the keyword 'pattern' at '#/properties/a'",
        ),
        (
            r#"{"properties": {"a": {"patternProperties": {"(?!x)y": {}}}}}"#,
            "look-around in the keyword 'patternProperties' at '#/properties/a'",
        ),
    ] {
        let schema = exact_number::parse(schema).unwrap();
        let error = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())).map(drop).unwrap_err();
        assert!(error.to_string().contains(expected), "{schema}: {error}");
    }
}

#[test]
fn keywords_that_always_hold_pass() {
    for schema in [
        json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}}),
        json!({"type": "object", "propertyNames": {"minLength": 0, "description": "a name"}}),
        json!({"minLength": 0, "minItems": 0, "minProperties": 0, "uniqueItems": false, "required": [], "allOf": []}),
        json!({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 2_147_483_647_u32, "minProperties": 0}),
        json!({"type": "string", "maxLength": 18_446_744_073_709_551_615_u64}),
        json!({"type": "array", "maxItems": 9.007_199_254_740_991e15}),
        json!({"type": "string", "contentEncoding": "base64", "contentMediaType": "text/plain", "contentSchema": {}}),
        json!({"type": "integer", "format": "regex", "pattern": "(?=a)"}),
        json!({"type": "array", "contains": {}, "items": {"type": "null"}}),
        json!({"type": "object", "additionalProperties": true, "unevaluatedProperties": true, "deprecated": true}),
        json!({"type": "array", "items": {}, "additionalItems": true, "unevaluatedItems": true}),
        json!({"not": false, "dependentRequired": {}, "patternProperties": {}}),
        json!({"type": "number", "minimum": -1.797_693_134_862_315_7e308, "maximum": 1.797_693_134_862_315_7e308}),
    ] {
        let compiled = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone()));
        assert!(compiled.is_ok(), "{schema}: {:?}", compiled.map(drop));
    }
    let some =
        matcher_of(r#"{"type": "array", "contains": {}, "minContains": 2, "items": {"type": "null"}}"#);
    assert!(accepts(&some, "[null,null]") && !accepts(&some, "[null]"));
}

#[test]
fn numbers_are_exact_in_every_kind_of_grammar() {
    let schema = exact_number::parse(
        r#"{"type": "object", "properties": {"id": {"enum": [2512292042121000001, 18446744073709551616]}},
        "required": ["id"], "additionalProperties": false}"#,
    )
    .unwrap();
    let tools = |format: ToolCallFormat| {
        let tools = vec![CallableTool { name: "f".to_owned(), arguments: schema.clone() }];
        let (must_call, only_one, control) = (true, true, Vec::new());
        ConstraintSpec::ToolCalls(ToolCallSpec { format, tools, must_call, only_one, control })
    };
    let lark = format!("start: \"<\" %json {} \">\"", r#"{"const": -9223372036854775808}"#);
    let tag = json!({"type": "structural_tag", "format": {"type": "tag", "begin": "<", "end": ">",
        "content": {"type": "json_schema", "json_schema": {"const": i64::MIN}}}});
    let (ids, extreme) = (["2512292042121000001", "18446744073709551616"], ["-9223372036854775808"; 2]);
    let mut rng = fastrand::Rng::with_seed(seed("numbers_are_exact_in_every_kind_of_grammar"));
    for (spec, right) in [
        (tools(ToolCallFormat::Hermes), ids),
        (tools(ToolCallFormat::Qwen3Coder), ids),
        (tools(ToolCallFormat::Pythonic), ids),
        (ConstraintSpec::Lark(lark), extreme),
        (ConstraintSpec::StructuralTag(tag), extreme),
    ] {
        let matcher = super::walk::matcher(spec);
        for _ in 0..8 {
            let text = draw(&matcher, &mut rng).expect("it is short");
            let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '-');
            let number = numbers.max_by_key(|digits| digits.len()).unwrap();
            assert!(right.contains(&number), "{text}");
        }
    }
}

#[test]
fn many_conditions_on_numbers_stay_within_bounds() {
    let many = |n: usize, make: &dyn Fn(usize) -> Value| -> Value { (0..n).map(make).collect() };
    let different = many(100, &|n| json!({"type": "integer", "minimum": n}));
    for (schema, is_too_complex) in [
        (json!({"anyOf": different}), false),
        (json!({"allOf": different}), true),
        (json!({"allOf": many(30, &|_| json!({"minimum": 1, "maximum": 3}))}), true),
        (json!({"enum": many(300, &|n| json!(n))}), false),
        (json!({"enum": many(100, &|n| json!([n]))}), false),
        (
            json!({"properties": {"a": {"allOf": [{"maximum": 3}, {"type": "integer"}, {"minimum": 2}]}}}),
            false,
        ),
    ] {
        let compiled = COMPILER.compile(&ConstraintSpec::JsonSchema(schema.clone())).map(drop);
        let is_refused = matches!(compiled, Err(GrammarError::TooComplex(_)));
        assert_eq!(is_refused, is_too_complex, "{schema}: {compiled:?}");
    }
}
