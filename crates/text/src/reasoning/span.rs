//! Parses one span of reasoning at the start of an answer. Another state machine parses the rest.

use super::ReasoningFormat;
use crate::tool_calls::{EventSink, Machine, Step};

/// Parses an answer that may start with reasoning.
#[derive(Debug)]
pub(crate) struct ReasoningSpan {
    format: ReasoningFormat,
    state: State,
    rest: Box<dyn Machine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Only this white space has arrived.
    Start(String),
    /// The prompt has opened the reasoning; a model may repeat the marker.
    Opened,
    Inside,
    Over,
}

impl ReasoningSpan {
    /// Creates a parser. With `is_open` the prompt ends inside the reasoning. `rest` parses the text after
    /// it.
    pub(crate) fn new(format: ReasoningFormat, is_open: bool, rest: Box<dyn Machine>) -> Self {
        let state = if is_open { State::Opened } else { State::Start(String::new()) };
        Self { format, state, rest }
    }
}

impl Machine for ReasoningSpan {
    fn markers(&self) -> &'static [&'static str] {
        match self.state {
            State::Start(_) => self.format.opens(),
            State::Opened => self.format.either(),
            State::Inside => self.format.closes(),
            State::Over => self.rest.markers(),
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if self.state == State::Over { self.rest.control_markers() } else { self.markers() }
    }

    fn in_reasoning(&self) -> bool {
        matches!(self.state, State::Opened | State::Inside)
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        if self.state == State::Over {
            return self.rest.marker(marker, out);
        }
        if self.format.opens().contains(&marker) {
            self.state = State::Inside;
        } else {
            out.end_reasoning();
            out.skip_blank();
            self.state = State::Over;
        }
    }

    fn control_marker(&mut self, marker: &'static str, out: &mut EventSink) {
        if self.state == State::Over {
            return self.rest.control_marker(marker, out);
        }
        self.marker(marker, out);
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match &mut self.state {
            State::Start(blank) if c.is_whitespace() => blank.push(c),
            State::Start(blank) => {
                let blank = std::mem::take(blank);
                self.state = State::Over;
                blank.chars().for_each(|c| while self.rest.char(c, out) == Step::Again {});
                return Step::Again;
            }
            State::Opened if c.is_whitespace() => {}
            State::Opened | State::Inside => {
                self.state = State::Inside;
                out.reasoning(c);
            }
            State::Over => return self.rest.char(c, out),
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        if let State::Start(blank) = &mut self.state {
            let blank = std::mem::take(blank);
            blank.chars().for_each(|c| while self.rest.char(c, out) == Step::Again {});
        }
        self.rest.end(out);
    }
}
