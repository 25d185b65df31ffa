//! Reads an engine's answer, whole or in chunks, as neutral events. Holds back the ends of choices until
//! the end of the answer: the usage, which other APIs send with the end of a choice, comes after all of
//! them.

use serde::Deserialize;
use serde_json::Value;
use throng_core::fleet::replica::Timing;
use throng_core::request::FinishReason;

use crate::answer::{AnswerEvent, ChoiceEnd, Delta, TokenCounts};
use crate::openai::response::call_id;
use crate::spec::{GenerationSpec, Input};

/// Maximum number of calls of a choice.
const MAX_CALLS: usize = 1024;

/// Error of an answer that does not have the expected form, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableAnswer(pub &'static str);

/// Reads the answer to one request.
#[derive(Debug)]
pub struct AnswerReader {
    choices: Vec<ChoiceReader>,
    /// Stop strings of the request.
    stop: Vec<String>,
    shows_reasoning: bool,
    only_first_call: bool,
}

#[derive(Debug, Default)]
struct ChoiceReader {
    calls: Vec<CallThere>,
    reason: Option<FinishReason>,
    stop: Option<String>,
    is_filtered: bool,
}

/// A call as identified by the engine.
#[derive(Debug)]
struct CallThere {
    index: Option<u64>,
    id: Option<String>,
}

/// A whole answer, or a chunk of one.
#[derive(Debug, Deserialize)]
struct Completion {
    choices: Option<Vec<ChoicePart>>,
}

#[derive(Debug, Deserialize)]
struct ChoicePart {
    index: Option<u64>,
    delta: Option<MessagePart>,
    message: Option<MessagePart>,
    text: Option<String>,
    finish_reason: Option<String>,
    /// Stop string, as vLLM and Throng send it; a token or null in other cases.
    #[serde(default)]
    stop_reason: Value,
    /// Stop string, as SGLang sends it.
    #[serde(default)]
    matched_stop: Value,
}

#[derive(Debug, Default, Deserialize)]
struct MessagePart {
    #[serde(default)]
    content: Value,
    /// Reasoning, under the older name and vLLM's. Some engines send both.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallPart>>,
}

#[derive(Debug, Deserialize)]
struct CallPart {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionPart>,
}

#[derive(Debug, Deserialize)]
struct FunctionPart {
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
}

impl AnswerReader {
    /// Creates a reader of the answer to `spec`.
    pub fn new(spec: &GenerationSpec) -> Self {
        let (n_prompts, shows_reasoning, only_first_call) = match &spec.input {
            Input::Chat(chat) => (1, chat.shows_reasoning, chat.only_first_call),
            Input::Prompts(input) => (input.prompts.len(), true, false),
        };
        let mut choices = Vec::new();
        choices.resize_with(n_prompts * spec.options.n() as usize, ChoiceReader::default);
        Self { choices, stop: spec.options.stop.clone(), shows_reasoning, only_first_call }
    }

    /// Number of choices in the answer.
    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// Reads a chunk, or a whole answer.
    ///
    /// # Errors
    /// When the JSON is neither.
    pub fn read(&mut self, json: &[u8]) -> Result<Vec<AnswerEvent>, UnreadableAnswer> {
        let answer: Completion = serde_json::from_slice(json)
            .map_err(|_| UnreadableAnswer("its answer is not in the form of OpenAI's API"))?;
        let mut events = Vec::new();
        for part in answer.choices.unwrap_or_default() {
            let choice_idx = part.index.unwrap_or(0) as usize;
            let deltas = self.read_choice(choice_idx, part)?;
            if !deltas.is_empty() {
                let is_reasoning = deltas.iter().all(|delta| matches!(delta, Delta::Reasoning(_)));
                events.push(AnswerEvent::Token { choice_idx, report: None, is_reasoning, deltas });
            }
        }
        Ok(events)
    }

    /// Ends the answer with its token counts and times.
    pub fn finish(&mut self, counts: TokenCounts, timing: Timing) -> Vec<AnswerEvent> {
        let ends = self.choices.drain(..).enumerate().map(|(choice_idx, choice)| {
            let ChoiceReader { calls, reason, stop, is_filtered } = choice;
            let reason = reason.unwrap_or(FinishReason::Stop { token: None });
            let end = ChoiceEnd { reason, stop, is_filtered, has_calls: !calls.is_empty(), timing };
            AnswerEvent::Finished { choice_idx, deltas: Vec::new(), end }
        });
        std::iter::once(AnswerEvent::Usage(counts)).chain(ends).collect()
    }

    fn read_choice(&mut self, choice_idx: usize, part: ChoicePart) -> Result<Vec<Delta>, UnreadableAnswer> {
        let Some(choice) = self.choices.get_mut(choice_idx) else {
            return Err(UnreadableAnswer("its answer has more choices than were asked for"));
        };
        let is_whole = part.message.is_some();
        let message = part.delta.or(part.message).unwrap_or_default();
        let mut deltas = Vec::new();
        let reasoning = message.reasoning_content.or(message.reasoning).unwrap_or_default();
        if self.shows_reasoning && !reasoning.is_empty() {
            deltas.push(Delta::Reasoning(reasoning));
        }
        let texts = [Some(text_of(&message.content)), message.refusal, part.text];
        deltas.extend(texts.into_iter().flatten().filter(|text| !text.is_empty()).map(Delta::Content));
        for (position, mut call) in message.tool_calls.into_iter().flatten().enumerate() {
            // Calls of a whole answer need no indices.
            call.index = call.index.or(is_whole.then_some(position as u64));
            choice.read_call(call, self.only_first_call, &mut deltas)?;
        }
        if let Some(reason) = part.finish_reason {
            choice.is_filtered = reason == "content_filter";
            let is_length = matches!(reason.as_str(), "length" | "max_tokens");
            choice.reason =
                Some(if is_length { FinishReason::Length } else { FinishReason::Stop { token: None } });
            let said = part.stop_reason.as_str().or(part.matched_stop.as_str()).map(str::to_owned);
            choice.stop = said.filter(|said| self.stop.contains(said));
        }
        Ok(deltas)
    }
}

impl ChoiceReader {
    fn read_call(
        &mut self,
        part: CallPart,
        only_first: bool,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), UnreadableAnswer> {
        let CallPart { index, id, function } = part;
        let Some(FunctionPart { name, arguments }) = function else { return Ok(()) };
        let id = id.filter(|id| !id.is_empty());
        let known = match (index, &id) {
            (Some(_), _) => self.calls.iter().position(|call| call.index == index),
            (None, Some(_)) => self.calls.iter().position(|call| call.id == id),
            (None, None) => self.calls.len().checked_sub(1),
        };
        let call_idx = match known {
            Some(call_idx) => call_idx,
            None => {
                let Some(name) = name.filter(|name| !name.is_empty()) else {
                    return Err(UnreadableAnswer("its answer has a call of a tool without a name"));
                };
                if self.calls.len() == MAX_CALLS {
                    return Err(UnreadableAnswer("its answer has too many calls of tools"));
                }
                self.calls.push(CallThere { index, id: id.clone() });
                let call_idx = self.calls.len() - 1;
                if call_idx == 0 || !only_first {
                    let id = id.unwrap_or_else(|| call_id(false));
                    deltas.push(Delta::CallBegin { call_idx: call_idx as u32, id, name });
                }
                call_idx
            }
        };
        let fragment = match arguments {
            Value::Null => String::new(),
            Value::String(text) => text,
            tree => tree.to_string(),
        };
        if !fragment.is_empty() && (call_idx == 0 || !only_first) {
            deltas.push(Delta::CallArguments { call_idx: call_idx as u32, fragment });
        }
        Ok(())
    }
}

/// The text of `content`: a string, or the joined text parts of a list.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::answer::{Answer, Tally};
    use crate::dialect::Dialect;
    use crate::field::ReadOptions;
    use crate::openai::ChatCompletions;

    fn reader(more: Value) -> AnswerReader {
        let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        request.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        let read = ChatCompletions.parse(request.to_string().as_bytes(), &ReadOptions::default());
        AnswerReader::new(&read.expect("valid").spec)
    }

    /// The whole answer, assembled from these pieces.
    fn answer(mut reader: AnswerReader, pieces: &[Value]) -> Answer {
        let mut answer = Answer::new(1, reader.n_choices(), Tally::default());
        for piece in pieces {
            let events = reader.read(piece.to_string().as_bytes()).expect("readable");
            events.into_iter().for_each(|event| answer.add(event));
        }
        let counts = TokenCounts { prompt: 9, images: 5, cached: 4, output: 7, reasoning: 2 };
        reader.finish(counts, Timing::default()).into_iter().for_each(|event| answer.add(event));
        answer
    }

    fn chunk(delta: Value, finish_reason: Option<&str>) -> Value {
        json!({"object": "chat.completion.chunk", "choices": [
            {"index": 0, "delta": delta, "finish_reason": finish_reason, "stop_reason": "END"}
        ]})
    }

    fn call(members: Value) -> Value {
        chunk(json!({"tool_calls": [members]}), None)
    }

    #[test]
    fn chunks_and_the_whole_answer_are_read_alike() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        let chunks = [
            chunk(json!({"role": "assistant", "content": ""}), None),
            chunk(json!({"reasoning_content": "hm", "reasoning": "hm"}), None),
            chunk(json!({"content": "Good "}), None),
            chunk(json!({"content": [{"type": "text", "text": "day"}]}), None),
            call(
                json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
            ),
            call(json!({"index": 0, "function": {"arguments": "{\"x\":"}})),
            call(json!({"index": 0, "function": {"name": null, "arguments": "1}"}})),
            call(json!({"index": 1, "id": "b", "function": {"name": "f", "arguments": {"y": 2}}})),
            chunk(json!({}), Some("tool_calls")),
            json!({"choices": [], "usage": {}}),
        ];
        let calls = json!([
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{\"y\":2}"}},
        ]);
        let message =
            json!({"role": "assistant", "content": "Good day", "reasoning": "hm", "tool_calls": calls});
        let whole = json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {}});
        for (pieces, n_calls, more) in [
            (&chunks[..], 2, json!({"tools": tools})),
            (std::slice::from_ref(&whole), 2, json!({"tools": tools})),
            (&chunks, 1, json!({"tools": tools, "parallel_tool_calls": false})),
        ] {
            let answer = answer(reader(more), pieces);
            let choice = &answer.choices[0];
            assert_eq!((choice.content.as_str(), choice.reasoning.as_str()), ("Good day", "hm"));
            let calls: Vec<_> =
                choice.calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
            assert_eq!(calls, [("a", "f", "{\"x\":1}"), ("b", "f", "{\"y\":2}")][..n_calls]);
            let end = choice.end.as_ref().expect("it ended");
            assert!(end.has_calls && end.stop.is_none(), "{end:?}");
            let tally = answer.tally;
            assert_eq!((tally.prompt, tally.images, tally.cached), (9, 5, 4));
            assert_eq!((tally.output, tally.reasoning), (7, 2));
        }
        let hidden = answer(reader(json!({"include_reasoning": false})), &[whole]);
        assert_eq!(hidden.choices[0].reasoning, "");
    }

    #[test]
    fn ends_are_told_apart() {
        for (told, reason, stop, is_filtered) in [
            ("stop", FinishReason::Stop { token: None }, Some("END"), false),
            ("length", FinishReason::Length, Some("END"), false),
            ("content_filter", FinishReason::Stop { token: None }, Some("END"), true),
        ] {
            let answer =
                answer(reader(json!({"stop": ["END"]})), &[chunk(json!({"content": "a"}), Some(told))]);
            let end = answer.choices[0].end.as_ref().expect("it ended");
            assert_eq!((end.reason, end.stop.as_deref(), end.is_filtered), (reason, stop, is_filtered));
        }
        let answer = answer(reader(json!({"stop": ["other"]})), &[chunk(json!({}), Some("stop"))]);
        assert_eq!(answer.choices[0].end.as_ref().and_then(|end| end.stop.clone()), None);
    }

    #[test]
    fn what_cannot_be_read_is_a_fault_and_no_panic() {
        let nameless = call(json!({"index": 0, "function": {"arguments": "1"}})).to_string();
        let other = json!({"choices": [{"index": 7, "delta": {"content": "a"}}]}).to_string();
        for piece in ["[]", "{\"choices\":[{\"delta\":1}]}", "x", &nameless, &other] {
            assert!(reader(json!({})).read(piece.as_bytes()).is_err(), "{piece}");
        }
        assert_eq!(reader(json!({})).read(b"{\"choices\":null}").map(|events| events.len()), Ok(0));
    }
}
