//! Parsers of answers: what each format says, that no cut of the text changes it, and that nothing is lost.

use std::sync::Arc;

use super::corpus::{BROKEN, CASES, Case, TAGS_IN_VALUES};
use fastrand::Rng;
use serde_json::{Value, json};
use throng_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ParseOptions, ReasoningFormat, Tokenizer, ToolCallFormat,
    ToolSchemas,
};

/// A piece of an answer: text, or a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Control(&'a str),
}

/// What an answer said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Parts {
    content: String,
    thought: String,
    calls: Vec<(String, String)>,
    n_ended: usize,
}

impl Parts {
    fn take(&mut self, events: Vec<AnswerEvent>) {
        for event in events {
            match event {
                AnswerEvent::Content(text) => self.content.push_str(&text),
                AnswerEvent::Reasoning(text) => self.thought.push_str(&text),
                AnswerEvent::ToolCallBegin { index, name, .. } => {
                    assert_eq!((index as usize, self.n_ended), (self.calls.len(), self.calls.len()));
                    self.calls.push((name, String::new()));
                }
                AnswerEvent::ToolCallArguments { index, fragment } => {
                    assert_eq!((index as usize + 1, self.n_ended + 1), (self.calls.len(), self.calls.len()));
                    assert!(!fragment.is_empty());
                    self.calls[index as usize].1.push_str(&fragment);
                }
                AnswerEvent::ToolCallEnd { index } => {
                    assert_eq!((index as usize + 1, self.n_ended + 1), (self.calls.len(), self.calls.len()));
                    self.n_ended += 1;
                }
            }
        }
    }
}

fn tools() -> Arc<ToolSchemas> {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    Arc::new(ToolSchemas::new(&[
        tool("get_weather", json!({"city": {"type": "string"}})),
        tool("now", json!({})),
        tool("save", json!({"text": {"type": "string"}})),
        tool("write", json!({"path": {"type": "string"}, "content": {"type": "string"}})),
        tool(
            "typed",
            json!({
                "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"}, "text": {"type": "string"},
                "list": {"type": "array"}, "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            }),
        ),
    ]))
}

/// Every string that some format has as a marker.
const MARKERS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<function_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<function_calls>",
    "</function_calls>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
];

/// A tokenizer to which these are control tokens.
fn tokenizer(control: &[&str]) -> Tokenizer {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizers/byte_level_gpt2.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let first_id = added.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
    for (idx, text) in control.iter().enumerate() {
        added.push(json!({
            "id": first_id + idx as u64, "content": text, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        }));
    }
    Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), None).unwrap()
}

fn format_of(case: &Case, tokenizer: &Tokenizer) -> AnswerFormat {
    AnswerFormat::new(ToolCallFormat::named(case.tools), ReasoningFormat::named(case.reasoning), tokenizer)
}

fn parser(case: &Case, format: &AnswerFormat) -> AnswerParser {
    let options =
        ParseOptions { tools: Some(tools()), in_reasoning: case.in_reasoning, ..ParseOptions::default() };
    AnswerParser::new(format, options)
}

fn parse<'a>(case: &Case, format: &AnswerFormat, pieces: impl IntoIterator<Item = Piece<'a>>) -> Parts {
    let mut parser = parser(case, format);
    let mut parts = Parts::default();
    for piece in pieces {
        parts.take(match piece {
            Piece::Text(text) => parser.push_text(text),
            Piece::Control(token) => parser.push_control(token),
        });
    }
    parts.take(parser.finish());
    assert_eq!(parts.n_ended, parts.calls.len());
    parts
}

/// The answer with its markers as control tokens.
fn with_control_tokens(answer: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = answer;
    loop {
        let next = MARKERS.iter().filter_map(|marker| Some((rest.find(marker)?, *marker))).min();
        let Some((at, marker)) = next else {
            pieces.push(Piece::Text(rest));
            return pieces;
        };
        pieces.push(Piece::Text(&rest[..at]));
        pieces.push(Piece::Control(&rest[at..at + marker.len()]));
        rest = &rest[at + marker.len()..];
    }
}

/// The pieces cut at these places, which count bytes of text over all pieces.
fn cut<'a>(pieces: &[Piece<'a>], places: &[usize]) -> Vec<Piece<'a>> {
    let mut cut = Vec::new();
    let mut start = 0;
    for piece in pieces {
        let Piece::Text(text) = piece else {
            cut.push(*piece);
            continue;
        };
        let mut from = 0;
        for place in places.iter().filter(|place| (start..=start + text.len()).contains(place)) {
            cut.push(Piece::Text(&text[from..place - start]));
            from = place - start;
        }
        cut.push(Piece::Text(&text[from..]));
        start += text.len();
    }
    cut
}

/// Where the text may be cut.
fn places(pieces: &[Piece<'_>]) -> Vec<usize> {
    let text: String =
        pieces.iter().map(|piece| if let Piece::Text(text) = piece { text } else { "" }).collect();
    (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect()
}

fn expected(case: &Case) -> Parts {
    let calls: Vec<_> =
        case.calls.iter().map(|(name, args)| ((*name).to_owned(), (*args).to_owned())).collect();
    let n_ended = calls.len();
    Parts { content: case.content.to_owned(), thought: case.thought.to_owned(), calls, n_ended }
}

fn check_cuts(case: &Case, format: &AnswerFormat, pieces: &[Piece<'_>]) {
    let whole = expected(case);
    assert_eq!(parse(case, format, pieces.iter().copied()), whole, "{case:?}");
    let places = places(pieces);
    let check = |places: &[usize]| {
        assert_eq!(parse(case, format, cut(pieces, places)), whole, "cut at {places:?}: {case:?}");
    };
    check(&places);
    places.iter().for_each(|place| check(&[*place]));
    if places.len() <= 60 {
        for (idx, first) in places.iter().enumerate() {
            places[idx..].iter().for_each(|second| check(&[*first, *second]));
        }
    }
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let chosen: Vec<usize> = places.iter().copied().filter(|_| random.u8(..4) == 0).collect();
        check(&chosen);
    }
}

#[test]
fn answers_say_the_same_however_they_are_cut() {
    let tokenizer = tokenizer(&[]);
    for case in CASES.iter().chain(BROKEN).chain(TAGS_IN_VALUES) {
        check_cuts(case, &format_of(case, &tokenizer), &[Piece::Text(case.answer)]);
    }
}

#[test]
fn an_answer_that_ends_inside_a_marker_after_a_call_has_no_text_of_it() {
    let tokenizer = tokenizer(&[]);
    let mut n_checked = 0;
    for case in CASES.iter().chain(TAGS_IN_VALUES) {
        let format = format_of(case, &tokenizer);
        for (end, _) in case.answer.char_indices() {
            let parts = parse(case, &format, [Piece::Text(&case.answer[..end])]);
            if !parts.calls.is_empty() {
                assert!(case.content.starts_with(&parts.content), "{:?}: {parts:?}", &case.answer[..end]);
                n_checked += 1;
            }
        }
    }
    assert!(n_checked > 1_000, "{n_checked}");
}

#[test]
fn answers_say_the_same_where_markers_are_control_tokens() {
    let tokenizer = tokenizer(MARKERS);
    // There, a marker inside of a string is no text of the model's.
    let in_string = |case: &&Case| !case.answer.contains(r#""<tool_call>"#);
    for case in CASES.iter().chain(BROKEN).filter(in_string) {
        check_cuts(case, &format_of(case, &tokenizer), &with_control_tokens(case.answer));
    }
}

#[test]
fn the_spelling_of_a_control_token_is_only_text() {
    let tokenizer = tokenizer(MARKERS);
    for case in CASES {
        // Markers that no model has as control tokens count as text.
        let only_control = case.tools != "generic"
            && !["<function=", "functools[", "Here is", "<invoke"].iter().any(|m| case.answer.contains(m));
        let is_unmarked =
            ["llama3_json", "llama4_json", "pythonic"].contains(&case.tools) && !case.calls.is_empty();
        if !only_control || is_unmarked || case.in_reasoning {
            continue;
        }
        let parts = parse(case, &format_of(case, &tokenizer), [Piece::Text(case.answer)]);
        assert_eq!(parts, Parts { content: case.answer.to_owned(), ..Parts::default() }, "{case:?}");
    }
}

#[test]
fn a_control_token_ends_a_call_even_inside_a_string() {
    let case = Case { tools: "mistral", ..CASES[0].clone() };
    let format = format_of(&case, &tokenizer(MARKERS));
    let pieces = [
        Piece::Control("[TOOL_CALLS]"),
        Piece::Text("now"),
        Piece::Control("[ARGS]"),
        Piece::Text("{\"a\": \"b"),
        Piece::Control("[TOOL_CALLS]"),
        Piece::Text("get_weather{}"),
    ];
    let calls = [("now", "{\"a\": \"b"), ("get_weather", "{}")]
        .map(|(name, args)| (name.to_owned(), args.to_owned()));
    assert_eq!(parse(&case, &format, pieces).calls, calls);
}

#[test]
fn ids_that_a_model_wrote_and_reads_back_stay() {
    let tokenizer = tokenizer(&[]);
    let ids = |tools: &'static str, n_past_calls: usize, answer: &str| {
        let case = Case { tools, ..CASES[0].clone() };
        let options = ParseOptions { tools: Some(self::tools()), n_past_calls, ..ParseOptions::default() };
        let mut parser = AnswerParser::new(&format_of(&case, &tokenizer), options);
        let events = [parser.push_text(answer), parser.finish()].concat();
        let begun = |event: AnswerEvent| match event {
            AnswerEvent::ToolCallBegin { id, .. } => Some(id),
            _ => None,
        };
        events.into_iter().filter_map(begun).collect::<Vec<_>>()
    };
    let some = |id: &str| Some(id.to_owned());
    let call = |id: &str| format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>");
    assert_eq!(ids("kimi_k2", 0, &call("functions.now:0")), [some("functions.now:0")]);
    let three = [call("functions.now:4"), call("functions.now:4"), call("get_weather")].concat();
    let expected = [some("functions.now:4"), some("functions.now:3"), some("functions.get_weather:4")];
    assert_eq!(ids("kimi_k2", 2, &three), expected);
    let mistral = "[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]now[ARGS]{}";
    assert_eq!(ids("mistral", 0, mistral), [some("a1B2c3D4e"), None]);
    assert_eq!(ids("hermes", 0, "<tool_call>{\"name\": \"now\"}</tool_call>"), [None]);
}

#[test]
fn the_first_call_alone_is_given_where_only_one_is_wanted() {
    let tokenizer = tokenizer(&[]);
    for case in CASES.iter().filter(|case| case.calls.len() > 1) {
        let format = format_of(case, &tokenizer);
        let options = ParseOptions { tools: Some(tools()), only_first_call: true, ..ParseOptions::default() };
        let mut parser = AnswerParser::new(&format, options);
        let mut parts = Parts::default();
        parts.take(parser.push_text(case.answer));
        parts.take(parser.finish());
        assert_eq!(parts.calls, expected(case).calls[..1], "{case:?}");
    }
}

#[test]
fn calls_are_text_where_there_are_no_tools() {
    let tokenizer = tokenizer(&[]);
    for case in CASES.iter().filter(|case| case.reasoning.is_empty() && case.tools != "openai") {
        let format = format_of(case, &tokenizer);
        assert!(format.is_plain(false));
        let mut parser = AnswerParser::new(&format, ParseOptions::default());
        let mut parts = Parts::default();
        parts.take(parser.push_text(case.answer));
        parts.take(parser.finish());
        assert_eq!(parts, Parts { content: case.answer.to_owned(), ..Parts::default() });
    }
}

/// An answer of markers, pieces of calls and noise.
fn random_answer(random: &mut Rng) -> Vec<Piece<'static>> {
    const NOISE: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ":",
        ",",
        " ",
        "\n",
        "a",
        "é😀",
        "1",
        "null",
        "(",
        ")",
        "=",
        "'",
        ";",
        ">",
        "name",
        "\"name\"",
        "\"arguments\": ",
        "\"parameters\"",
        "{\"name\": \"now\", ",
        "\"now\"",
        "now",
        "get_weather",
        "function",
        "<parameter=",
        "</parameter>",
        "<function=",
        "</function>",
        "<function=typed>",
        "<parameter=n>",
        "<invoke name=",
        "</invoke>",
        "<parameter=text>\n",
        "<function=write>\n<parameter=path>",
        "<tool_call>write\n<arg_key>path</arg_key><arg_value>",
        "'''",
        "functools[",
        "analysis",
        "final",
        " to=functions.now",
        "```json\n",
        "```",
        "Here is my thought process:",
        "Here is my response:",
        "[now(",
        "a='b'",
        "\\u00",
        "\\ud83d",
        "<",
        "<|",
        "<tool",
    ];
    let n_pieces = random.usize(..30);
    (0..n_pieces)
        .map(|_| match random.u8(..5) {
            0 => Piece::Control(MARKERS[random.usize(..MARKERS.len())]),
            1 => Piece::Text(MARKERS[random.usize(..MARKERS.len())]),
            _ => Piece::Text(NOISE[random.usize(..NOISE.len())]),
        })
        .collect()
}

/// Markers and what formats put into arguments aside, every letter of an answer is in its parts.
fn letters(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| matches!(c, 'é' | '😀'))
}

#[test]
fn random_answers_are_cut_alike_and_lose_no_text() {
    let (plain, control) = (tokenizer(&[]), tokenizer(MARKERS));
    for seed in 0..5_000 {
        let mut random = Rng::with_seed(seed);
        let (tools, _) = ToolCallFormat::NAMES[random.usize(..ToolCallFormat::NAMES.len())];
        let (reasoning, _) = ReasoningFormat::NAMES[random.usize(..ReasoningFormat::NAMES.len())];
        let reasoning = if random.bool() { reasoning } else { "" };
        let case = Case { tools, reasoning, in_reasoning: random.bool(), ..CASES[0].clone() };
        let format = format_of(&case, if random.bool() { &plain } else { &control });
        let pieces = random_answer(&mut random);
        let whole = parse(&case, &format, pieces.iter().copied());
        let places: Vec<usize> = places(&pieces).into_iter().filter(|_| random.bool()).collect();
        assert_eq!(parse(&case, &format, cut(&pieces, &places)), whole, "seed {seed}: {case:?} {pieces:?}");
        // What a parser gives back or passes on is all there is, but for the values of tags without a call around them.
        let text: String =
            pieces.iter().map(|piece| if let Piece::Text(text) = piece { text } else { "" }).collect();
        let parts: String = whole.calls.iter().map(|(name, args)| format!("{name}{args}")).collect();
        let n_said = letters(&(whole.content + &whole.thought + &parts)).count();
        assert!(n_said <= letters(&text).count(), "seed {seed}: {pieces:?}");
    }
}

#[test]
fn whatever_is_no_call_is_given_back_to_the_letter() {
    let tokenizer = tokenizer(&[]);
    for seed in 0..5_000 {
        let mut random = Rng::with_seed(seed);
        let (tools, format) = ToolCallFormat::NAMES[random.usize(..ToolCallFormat::NAMES.len())];
        if format == ToolCallFormat::Harmony {
            continue;
        }
        let case = Case { tools, ..CASES[0].clone() };
        let pieces = random_answer(&mut random);
        let spelled = pieces.iter().map(|piece| match piece {
            Piece::Text(text) | Piece::Control(text) => *text,
        });
        let text: String = spelled.collect();
        let parts = parse(&case, &format_of(&case, &tokenizer), [Piece::Text(&text)]);
        if parts.calls.is_empty() {
            assert_eq!(parts.content, text, "seed {seed}: {tools}");
        }
    }
}
