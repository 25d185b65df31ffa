//! What a parser says of an answer, and the rules that all formats share: blank text around calls is dropped,
//! a client that wants one call gets the first. Does not know formats.

use super::CallIds;

/// Something that a parser is certain of. Events of one kind that follow each other may be cut anywhere; put
/// together they are the same however the answer came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the user.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A call of a tool begins.
    ToolCallBegin {
        /// The call's number in the answer, from 0.
        index: u32,
        /// The tool's name.
        name: String,
        /// The call's id, where the family has a form of ids that it reads back; `None`: any id will do.
        id: Option<String>,
    },
    /// The next piece of a call's arguments: JSON, if the model wrote them well.
    ToolCallArguments {
        /// The call's number.
        index: u32,
        /// The piece.
        fragment: String,
    },
    /// A call is complete, or the answer ended inside it.
    ToolCallEnd {
        /// The call's number.
        index: u32,
    },
}

/// Events that the formats' state machines found.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    events: Vec<AnswerEvent>,
    /// Blank text of the content that is dropped if a call follows.
    blank: String,
    /// Blank text of the reasoning that is dropped if the reasoning ends there.
    reasoning_blank: String,
    /// Blank text is dropped here, before the content begins.
    skips_blank: bool,
    has_reasoning: bool,
    has_content: bool,
    /// A call has come, and nothing but blank text since.
    is_after_call: bool,
    /// Text for the user is dropped: the answer ends with the beginning of a further call.
    drops_content: bool,
    n_calls: u32,
    in_call: bool,
    /// The open call has arguments.
    has_arguments: bool,
    only_first_call: bool,
    ids: CallIds,
}

impl EventSink {
    /// Creates a sink; with `only_first_call` the others are dropped.
    pub(crate) fn new(only_first_call: bool, ids: CallIds) -> Self {
        Self { only_first_call, ids, ..Self::default() }
    }

    /// Takes the events found since the last time.
    pub(crate) fn take(&mut self) -> Vec<AnswerEvent> {
        std::mem::take(&mut self.events)
    }

    /// A character for the user.
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

    /// Text for the user.
    pub(crate) fn content_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.content(c));
    }

    /// A character of the reasoning.
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

    /// The reasoning ends, for now.
    pub(crate) fn end_reasoning(&mut self) {
        self.reasoning_blank.clear();
    }

    /// The content begins with the first character that is not blank.
    pub(crate) fn skip_blank(&mut self) {
        self.skips_blank = true;
    }

    /// A further part of the reasoning, or of the content, begins: a line break keeps it apart from the one
    /// before.
    pub(crate) fn separate(&mut self) {
        if self.has_reasoning {
            self.reasoning_blank = "\n".to_owned();
        }
        if self.has_content {
            self.blank = "\n".to_owned();
        }
    }

    /// A call begins; one that is still open ends.
    pub(crate) fn begin_call(&mut self, name: &str) {
        self.begin_call_with_id(name, None);
    }

    /// The same for a call to which the model gave an id.
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

    /// A character of the open call's arguments.
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

    /// Text of the open call's arguments.
    pub(crate) fn argument_text(&mut self, text: &str) {
        text.chars().for_each(|c| self.argument(c));
    }

    /// The open call, if there is one, ends; one without arguments gets an empty object.
    pub(crate) fn end_call(&mut self) {
        if self.in_call && !self.has_arguments {
            self.argument_text("{}");
        }
        self.cut_call();
    }

    /// The answer, or the text that the open call stands in, ends before the call does.
    pub(crate) fn cut_call(&mut self) {
        if self.shows_call() {
            self.events.push(AnswerEvent::ToolCallEnd { index: self.n_calls - 1 });
        }
        self.in_call = false;
    }

    /// The answer ends here, perhaps inside of a marker: what was held back right after a call is the
    /// beginning
    /// of what stands around calls, and no text.
    pub(crate) fn begin_end(&mut self) {
        self.drops_content = self.is_after_call;
    }

    /// The answer has ended.
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
