//! Quoted calls inside of a value: text about a format of calls may quote whole calls, whose tags must not
//! end the value that is being parsed. Does not know what else ends a value.

use super::{MAX_HELD_BYTES, MAX_NAME_BYTES, is_name_char};

/// Tags that mark a quoted call.
#[derive(Debug)]
pub(super) struct QuoteSpelling {
    /// Text before the name.
    pub open: &'static str,
    /// Text after the name.
    pub name_end: &'static str,
    /// Text before an argument.
    pub argument: &'static str,
    /// Text after the call.
    pub close: &'static str,
}

/// Tracks quoted calls in the text of one value.
#[derive(Debug)]
pub(super) struct QuotedCall {
    spelling: &'static QuoteSpelling,
    /// The end of the text that may be the start of a quoted call or, inside of one, of its end.
    text: String,
    is_inside: bool,
}

/// Result of comparing a text with the beginning of a call.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Beginning,
    Call,
    /// A call without arguments.
    Whole,
}

impl QuotedCall {
    /// Creates a reader at the beginning of a value.
    pub(super) fn new(spelling: &'static QuoteSpelling) -> Self {
        Self { spelling, text: String::new(), is_inside: false }
    }

    /// Processes the next character of the value.
    pub(super) fn take(&mut self, c: char) {
        self.text.push(c);
        if self.is_inside {
            while !self.spelling.close.starts_with(&self.text) {
                self.text.remove(0);
            }
            if self.text == self.spelling.close {
                self.text.clear();
                self.is_inside = false;
            }
            return;
        }
        loop {
            match self.found(&self.text) {
                Found::Beginning => return,
                Found::Nothing => match self.text.char_indices().skip(1).find(|(_, c)| *c == '<') {
                    Some((at, _)) => drop(self.text.drain(..at)),
                    None => return self.text.clear(),
                },
                found => {
                    self.is_inside = found == Found::Call;
                    return self.text.clear();
                }
            }
        }
    }

    /// Whether a marker at this position is part of a quoted call.
    pub(super) fn holds(&self, marker: &str) -> bool {
        let is_part = || self.found(&format!("{}{marker}", self.text));
        self.is_inside || matches!(is_part(), Found::Call | Found::Whole)
    }

    fn found(&self, text: &str) -> Found {
        let QuoteSpelling { open, name_end, argument, close } = *self.spelling;
        let begins = |is_so: bool| if is_so { Found::Beginning } else { Found::Nothing };
        let Some(rest) = text.strip_prefix(open) else { return begins(open.starts_with(text)) };
        let is_name = |c: char| is_name_char(c) || matches!(c, '"' | '\'');
        let Some(n_name) = rest.find(|c| !is_name(c)) else { return begins(rest.len() <= MAX_NAME_BYTES) };
        let Some(rest) = rest[n_name..].strip_prefix(name_end).filter(|_| n_name > 0) else {
            return Found::Nothing;
        };
        let rest = rest.trim_start();
        if rest.starts_with(argument) {
            Found::Call
        } else if rest.starts_with(close) {
            Found::Whole
        } else {
            begins([argument, close].iter().any(|mark| mark.starts_with(rest)) && text.len() < MAX_HELD_BYTES)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPELLING: QuoteSpelling =
        QuoteSpelling { open: "<function=", name_end: ">", argument: "<parameter=", close: "</function>" };

    fn after(text: &str) -> QuotedCall {
        let mut quoted = QuotedCall::new(&SPELLING);
        text.chars().for_each(|c| quoted.take(c));
        quoted
    }

    #[test]
    fn a_quoted_call_holds_its_own_tags() {
        for text in ["<<function=<function=a>\n<parameter=b>1", "x <function=a><parameter="] {
            assert!(after(text).holds("</parameter>"), "{text}");
            assert!(!after(&format!("{text}</parameter></function>")).holds("</parameter>"), "{text}");
        }
        assert!(after("<function=a>\n").holds("<parameter=") && after("<function=a> ").holds("</function>"));
        for text in
            ["", "<function=", "<function=a> b", "<function=>", "the tag <function=a>", "<parameter=a>"]
        {
            assert!(!after(text).holds("</parameter>"), "{text}");
        }
        assert!(!after("<function=a> it says").holds("<parameter="));
    }
}
