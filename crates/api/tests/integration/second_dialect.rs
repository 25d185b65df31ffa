//! Another API beside OpenAI's costs one type: lines of JSON here, with other names, other errors and no
//! server-sent events. Streamed or whole, it says the same.

use std::io;
use std::sync::Arc;

use serde_json::{Value, json};
use throng_api::answer::{Answer, AnswerEvent, AnswerShape, ChoiceEnd, Delta, KeptTokens, Tally};
use throng_api::spec::{
    ChatInput, ContentPart, Conversation, GenerationOptions, GenerationSpec, Input, Message, ParamNames, Role,
};
use throng_api::{AnswerFacts, AnswerView, AnswerWriter, ApiError, Dialect, Events, ReadOptions, Request};
use throng_core::fleet::replica::{Timing, TokenReport};
use throng_core::request::FinishReason;
use throng_core::scheduling::batch::TokenLogprob;

#[derive(Debug)]
struct Lines;

impl Dialect for Lines {
    fn parse(&self, body: &[u8], _: &ReadOptions) -> Result<Request, ApiError> {
        let body: Value = serde_json::from_slice(body).map_err(|_| ApiError::not_an_object("nothing"))?;
        let ask = body["ask"].as_str().ok_or_else(|| ApiError::missing_required_parameter("ask"))?;
        let message = Message {
            role: Role::User,
            content: Some(vec![ContentPart::from(ask)]),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning: None,
        };
        let mut conversation = Conversation::default();
        conversation.messages.push(message);
        let mut options = GenerationOptions::default();
        options.names = ParamNames { prompt: "ask", max_tokens: "most", logprobs: "" };
        options.model = body["model"].as_str().map(str::to_owned);
        options.max_tokens = body["most"].as_i64();
        options.stream = Some(true);
        let chat = ChatInput { conversation, shows_reasoning: true, ..ChatInput::default() };
        let spec = GenerationSpec { options, input: Input::Chat(Box::new(chat)) };
        Ok(Request { spec, view: Box::new(View) })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        json!({"oops": error.code(), "at": error.param()}).to_string().into_bytes()
    }
}

#[derive(Debug)]
struct View;

impl AnswerView for View {
    fn shape(&self, _: &GenerationSpec) -> AnswerShape {
        AnswerShape::default()
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        let answer = Answer::new(1, 1, facts.tally());
        Box::new(Writer { model: facts.model, answer })
    }
}

#[derive(Debug)]
struct Writer {
    model: String,
    answer: Answer,
}

impl AnswerWriter for Writer {
    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn more(&mut self, _: &mut Events) -> bool {
        false
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        if let AnswerEvent::Token { deltas, .. } = &event {
            for text in deltas.iter().filter_map(Delta::content) {
                out.push_line(&json!({"say": text}));
            }
        }
        self.answer.add(event);
    }

    fn end(&mut self, out: &mut Events) {
        out.push_line(&last(&self.model, &self.answer));
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        out.push_bytes(&Lines.error_body(error));
    }

    fn ping(&mut self, _: &str, out: &mut Events) {
        out.push_bytes(b"\n");
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let mut whole = last(&self.model, answer);
        whole["say"] = answer.choices[0].content.as_str().into();
        Ok(serde_json::to_writer(out, &whole)?)
    }
}

fn last(model: &str, answer: &Answer) -> Value {
    let thought = answer.choices[0].reasoning.as_str();
    json!({"by": model, "read": answer.tally.prompt, "wrote": answer.tally.output, "thought": thought})
}

/// The events of an answer with a thought and two words.
fn events() -> Vec<AnswerEvent> {
    let report =
        |token| TokenReport { chosen: TokenLogprob { token, logprob: -0.5, rank: 1 }, top: Vec::new() };
    let token = |token, delta: Delta| AnswerEvent::Token {
        choice_idx: 0,
        report: Some(report(token)),
        is_reasoning: matches!(delta, Delta::Reasoning(_)),
        deltas: vec![delta],
    };
    let end = ChoiceEnd {
        reason: FinishReason::Length,
        stop: None,
        is_filtered: false,
        has_calls: false,
        timing: Timing::default(),
    };
    vec![
        AnswerEvent::Prompt {
            prompt_idx: 0,
            cached_tokens: 2,
            kept: KeptTokens::default(),
            logprobs: Vec::new(),
        },
        token(1, Delta::Reasoning("hm".into())),
        token(2, Delta::Content("Good ".into())),
        token(3, Delta::Content("day".into())),
        AnswerEvent::Finished { choice_idx: 0, deltas: Vec::new(), end },
    ]
}

#[test]
fn the_same_events_are_a_stream_of_lines_and_a_whole_answer() {
    let Request { spec, view } =
        Lines.parse(br#"{"ask":"Hi","model":"m"}"#, &ReadOptions::default()).expect("a good body");
    assert_eq!(spec.conversation().and_then(|c| c.messages[0].text()).as_deref(), Some("Hi"));
    let prompts = vec![Arc::from([7, 8, 9])];
    let facts = AnswerFacts {
        n_image_tokens: 0,
        model: "m".into(),
        created_unix_s: 0,
        prompts,
        texts: None,
        temperature: 1.0,
        top_p: 1.0,
        tokenizer: None,
        trail: None,
    };
    let (mut writer, mut out) = (view.writer(facts), Events::default());
    let mut answer = Answer::new(1, 1, Tally::new(3));
    events().into_iter().for_each(|event| answer.add(event));
    let mut whole = Vec::new();
    writer.whole(&answer, &mut whole).expect("memory");
    for event in events() {
        while writer.more(&mut out) {}
        writer.event(event, &mut out);
    }
    writer.end(&mut out);
    let last = json!({"by": "m", "read": 3, "wrote": 3, "thought": "hm"});
    let streamed = out.take();
    let lines: Vec<Value> =
        streamed.split(|&b| b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(lines, [json!({"say": "Good "}), json!({"say": "day"}), last.clone()]);
    let mut expected = last;
    expected["say"] = "Good day".into();
    assert_eq!(serde_json::from_slice::<Value>(&whole).expect("JSON"), expected);
    assert_eq!((answer.tally.cached, answer.tally.reasoning), (2, 1));
}

#[test]
fn its_errors_have_its_own_form() {
    let error = Lines.parse(b"{}", &ReadOptions::default()).expect_err("no question");
    let body: Value = serde_json::from_slice(&Lines.error_body(&error)).expect("JSON");
    assert_eq!(body, json!({"oops": "missing_required_parameter", "at": "ask"}));
}
