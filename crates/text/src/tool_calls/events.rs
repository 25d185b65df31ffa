//! Events of a parsed answer, and rules that all formats share: white space around calls is dropped, and a
//! client that wants one call gets the first. Does not know formats.

use super::CallIds;

/// An event that is certain. Consecutive events of one kind may be split anywhere; concatenated they are
/// the same however the answer arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the user.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A tool call starts.
    ToolCallBegin {
        /// Index of the call in the answer, from 0.
        index: u32,
        /// Name of the tool.
        name: String,
        /// Id of the call, if the family has a form of its own; `None`: any id is acceptable.
        id: Option<String>,
    },
    /// A fragment of a call's arguments, which are JSON unless the model made a mistake.
    ToolCallArguments {
        /// Index of the call.
        index: u32,
        /// Next part of the arguments.
        fragment: String,
    },
    /// A call is complete, or the answer ended inside it.
    ToolCallEnd {
        /// Index of the call.
        index: u32,
    },
}

/// Collects events of the formats' state machines.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    events: Vec<AnswerEvent>,
    /// White space of the content, dropped if a call follows.
    blank: String,
    /// White space of the reasoning, dropped if the reasoning ends there.
    reasoning_blank: String,
    /// Whether white space is dropped until the content starts.
    skips_blank: bool,
    has_reasoning: bool,
    has_content: bool,
    /// Whether a call is followed by nothing but white space so far.
    is_after_call: bool,
    /// Whether content is dropped: the answer ends with the start of another call.
    drops_content: bool,
    n_calls: u32,
    in_call: bool,
    /// Whether the open call has arguments.
    has_arguments: bool,
    only_first_call: bool,
    ids: CallIds,
}

impl EventSink {
    /// Creates a sink; with `only_first_call` later calls are dropped.
    pub(crate) fn new(only_first_call: bool, ids: CallIds) -> Self {
        Self { only_first_call, ids, ..Self::default() }
    }

    /// Takes the events since the last call.
    pub(crate) fn take(&mut self) -> Vec<AnswerEvent> {
        std::mem::take(&mut self.events)
    }

    /// Adds a character of the content.
    pub(crate) fn content(&mut self, c: char) {
        if self.drops_content {
            return;
        }
        if c.is_whitespace() {
            if !self.skips_blank {
                self.blank.push(c);
            }
            return;
        }
        self.skips_blank = false;
        self.has_content = true;
        self.is_after_call = false;
        let mut text = std::mem::take(&mut self.blank);
        text.push(c);
        match self.events.last_mut() {
            Some(AnswerEvent::Content(last)) => last.push_str(&text),
            _ => self.events.push(AnswerEvent::Content(text)),
        }
    }

    /// Adds content.
    pub(crate) fn content_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.content(c));
    }

    /// Adds a character of the reasoning.
    pub(crate) fn reasoning(&mut self, c: char) {
        if c.is_whitespace() {
            if self.has_reasoning {
                self.reasoning_blank.push(c);
            }
            return;
        }
        self.has_reasoning = true;
        let mut text = std::mem::take(&mut self.reasoning_blank);
        text.push(c);
        match self.events.last_mut() {
            Some(AnswerEvent::Reasoning(last)) => last.push_str(&text),
            _ => self.events.push(AnswerEvent::Reasoning(text)),
        }
    }

    /// Ends the reasoning for now.
    pub(crate) fn end_reasoning(&mut self) {
        self.reasoning_blank.clear();
    }

    /// Drops white space until the next other character of the content.
    pub(crate) fn skip_blank(&mut self) {
        self.skips_blank = true;
    }

    /// Starts another part of the reasoning or the content, separated from the previous one by a line
    /// break.
    pub(crate) fn separate(&mut self) {
        if self.has_reasoning {
            self.reasoning_blank = "\n".to_owned();
        }
        if self.has_content {
            self.blank = "\n".to_owned();
        }
    }

    /// Starts a call, after ending an open one.
    pub(crate) fn begin_call(&mut self, name: &str) {
        self.begin_call_with_id(name, None);
    }

    /// Starts a call with the id that the model generated.
    pub(crate) fn begin_call_with_id(&mut self, name: &str, written_id: Option<&str>) {
        self.end_call();
        self.blank.clear();
        self.in_call = true;
        self.is_after_call = true;
        self.has_arguments = false;
        self.n_calls += 1;
        let id = self.ids.next(name, written_id);
        if self.shows_call() {
            let (index, name) = (self.n_calls - 1, name.to_owned());
            self.events.push(AnswerEvent::ToolCallBegin { index, name, id });
        }
    }

    /// Adds a character to the open call's arguments.
    pub(crate) fn argument(&mut self, c: char) {
        if !self.shows_call() {
            return;
        }
        self.has_arguments = true;
        if let Some(AnswerEvent::ToolCallArguments { fragment, .. }) = self.events.last_mut() {
            fragment.push(c);
        } else {
            let index = self.n_calls - 1;
            self.events.push(AnswerEvent::ToolCallArguments { index, fragment: c.into() });
        }
    }

    /// Adds text to the open call's arguments.
    pub(crate) fn argument_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.argument(c));
    }

    /// Ends the open call, if any; a call without arguments gets an empty object.
    pub(crate) fn end_call(&mut self) {
        if self.in_call && !self.has_arguments {
            self.argument_text("{}");
        }
        self.cut_call();
    }

    /// Ends the open call early, at the end of the answer or of its surrounding text.
    pub(crate) fn cut_call(&mut self) {
        if self.shows_call() {
            self.events.push(AnswerEvent::ToolCallEnd { index: self.n_calls - 1 });
        }
        self.in_call = false;
    }

    /// Marks the end of the answer, possibly inside of a marker: text held back right after a call is the
    /// start of the text around calls and no content.
    pub(crate) fn begin_end(&mut self) {
        self.drops_content = self.is_after_call;
    }

    /// Ends the answer.
    pub(crate) fn end(&mut self) {
        self.cut_call();
        if self.n_calls > 0 || self.blank.is_empty() {
            return;
        }
        let blank = std::mem::take(&mut self.blank);
        match self.events.last_mut() {
            Some(AnswerEvent::Content(last)) => last.push_str(&blank),
            _ => self.events.push(AnswerEvent::Content(blank)),
        }
    }

    fn shows_call(&self) -> bool {
        self.in_call && (self.n_calls == 1 || !self.only_first_call)
    }
}
