//! Passes an answer's characters, markers and control tokens to a format's state machine, which determines
//! the markers that are valid at each position. Does not know formats.

use std::fmt::Debug;

use super::events::EventSink;

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The character was consumed.
    Taken,
    /// The machine has changed its state, and must get the character again: it may start a marker of the
    /// new state.
    Again,
}

/// State machine of a format. It gets one character or marker at a time, so that its results do not depend
/// on how the answer was split.
pub(crate) trait Machine: Debug + Send {
    /// Markers that are valid in the current state. None is a prefix of another.
    fn markers(&self) -> &'static [&'static str];
    /// Markers that are valid as control tokens, even where the same text would be part of a value.
    fn control_markers(&self) -> &'static [&'static str] {
        self.markers()
    }
    /// Whether the current text is reasoning.
    fn in_reasoning(&self) -> bool {
        false
    }
    /// Processes a valid marker.
    fn marker(&mut self, marker: &'static str, out: &mut EventSink);
    /// Processes a control token among [`Self::control_markers`], which is never part of a value.
    fn control_marker(&mut self, marker: &'static str, out: &mut EventSink) {
        self.marker(marker, out);
    }
    /// Processes a character. A machine that returns [`Step::Again`] has changed its state.
    fn char(&mut self, c: char, out: &mut EventSink) -> Step;
    /// Ends the answer.
    fn end(&mut self, out: &mut EventSink);
}

/// Finds markers for a machine. Holds back only the start of a marker that is valid in the machine's
/// current state.
#[derive(Debug)]
pub(crate) struct Scanner {
    held: String,
    /// Markers that are control tokens of the model; as plain text they are not markers.
    control: Vec<&'static str>,
}

/// Result of comparing the held-back text with the markers.
enum Found {
    Marker(&'static str),
    Beginning,
    Nothing,
}

impl Scanner {
    /// Creates a scanner. `control` are the markers that count only as control tokens.
    pub(crate) fn new(control: Vec<&'static str>) -> Self {
        Self { held: String::new(), control }
    }

    /// Processes text without markers.
    pub(crate) fn text(&mut self, text: &str, machine: &mut dyn Machine, out: &mut EventSink) {
        for c in text.chars() {
            self.held.push(c);
            self.drain(machine, out, false);
        }
    }

    /// Processes a control token. One that is not valid in the current state counts as its spelling.
    pub(crate) fn control(&mut self, token: &str, machine: &mut dyn Machine, out: &mut EventSink) {
        self.drain(machine, out, true);
        let mut chars = token.chars();
        let Some(first) = chars.next() else { return };
        loop {
            if let Some(marker) = machine.control_markers().iter().find(|marker| **marker == token) {
                machine.control_marker(marker, out);
                return;
            }
            if machine.char(first, out) == Step::Taken {
                break;
            }
        }
        chars.for_each(|c| while machine.char(c, out) == Step::Again {});
    }

    /// Passes the held-back text and the end to the machine.
    pub(crate) fn end(&mut self, machine: &mut dyn Machine, out: &mut EventSink) {
        out.begin_end();
        self.drain(machine, out, true);
        machine.end(out);
    }

    fn drain(&mut self, machine: &mut dyn Machine, out: &mut EventSink, is_end: bool) {
        while let Some(first) = self.held.chars().next() {
            match self.found(machine.markers()) {
                Found::Marker(marker) => {
                    self.held.drain(..marker.len());
                    machine.marker(marker, out);
                }
                Found::Beginning if !is_end => return,
                Found::Beginning | Found::Nothing => {
                    if machine.char(first, out) == Step::Taken {
                        self.held.drain(..first.len_utf8());
                    }
                }
            }
        }
    }

    fn found(&self, markers: &[&'static str]) -> Found {
        let held = self.held.as_str();
        let mut found = Found::Nothing;
        for marker in markers {
            if !(marker.starts_with(held) || held.starts_with(marker)) || self.control.contains(marker) {
                continue;
            }
            if held.len() >= marker.len() {
                return Found::Marker(marker);
            }
            found = Found::Beginning;
        }
        found
    }
}
