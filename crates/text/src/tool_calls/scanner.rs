//! An answer's characters and control tokens for a format's state machine, which says at every place which
//! markers mean something there. Does not know formats.

use std::fmt::Debug;

use super::events::EventSink;

/// Outcome of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The character was taken.
    Taken,
    /// The character belongs to the state that the machine is in now: with its markers it may be the
    /// beginning of one.
    Again,
}

/// A format's state machine. It sees one character or marker at a time, so what it says cannot depend on how
/// the answer was cut into pieces.
pub(crate) trait Machine: Debug + Send {
    /// The markers that mean something in the present state. None is the beginning of another.
    fn markers(&self) -> &'static [&'static str];
    /// The markers that mean something as control tokens: also where, as text, they would be part of a value.
    fn control_markers(&self) -> &'static [&'static str] {
        self.markers()
    }
    /// Whether what comes now is reasoning.
    fn in_reasoning(&self) -> bool {
        false
    }
    /// One of them came.
    fn marker(&mut self, marker: &'static str, out: &mut EventSink);
    /// One of [`Self::control_markers`] came as a control token, which is never part of a value.
    fn control_marker(&mut self, marker: &'static str, out: &mut EventSink) {
        self.marker(marker, out);
    }
    /// Something else came. A machine that answers [`Step::Again`] has changed its state.
    fn char(&mut self, c: char, out: &mut EventSink) -> Step;
    /// The answer has ended.
    fn end(&mut self, out: &mut EventSink);
}

/// Finds markers for a machine. It holds back only the beginning of a marker of the machine's present state.
#[derive(Debug)]
pub(crate) struct Scanner {
    held: String,
    /// The markers that are control tokens of the model: written in plain text they mean nothing.
    control: Vec<&'static str>,
}

/// Comparison of the text held back with the markers.
enum Found {
    Marker(&'static str),
    Beginning,
    Nothing,
}

impl Scanner {
    /// `control`: the markers that only count as control tokens.
    pub(crate) fn new(control: Vec<&'static str>) -> Self {
        Self { held: String::new(), control }
    }

    /// Takes in plain text.
    pub(crate) fn text(&mut self, text: &str, machine: &mut dyn Machine, out: &mut EventSink) {
        for c in text.chars() {
            self.held.push(c);
            self.drain(machine, out, false);
        }
    }

    /// Takes in a control token. One that means nothing in the present state counts as its spelling.
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

    /// Gives the machine what is held back, and the end.
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
