//! Processes JSON one character at a time: the ends of values, the content of strings, and writing strings.
//! Does not validate: clients see a model's mistakes.

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// The value continues.
    Goes,
    /// The value ended with this character.
    Ended,
    /// The value had ended before this character, which is not part of it.
    EndedBefore,
}

/// Finds the end of a JSON value.
#[derive(Debug, Clone, Default)]
pub(super) struct ValueSpan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    is_scalar: bool,
}

impl ValueSpan {
    /// Processes the next character of the value; the first is not white space.
    pub(super) fn take(&mut self, c: char) -> Value {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return self.at_depth();
                }
                _ => {}
            }
            return Value::Goes;
        }
        match c {
            ',' | '}' | ']' | '"' if self.is_scalar => return Value::EndedBefore,
            _ if self.is_scalar && c.is_whitespace() => return Value::EndedBefore,
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' if self.depth == 0 => return Value::EndedBefore,
            '}' | ']' => {
                self.depth -= 1;
                return self.at_depth();
            }
            _ => self.is_scalar = self.depth == 0,
        }
        Value::Goes
    }

    /// Whether the position is inside a string, where any text may occur.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    fn at_depth(&self) -> Value {
        if self.depth == 0 { Value::Ended } else { Value::Goes }
    }
}

/// Result of a character of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A decoded character.
    Char(char),
    /// No character yet: the next ones are needed.
    Nothing,
    /// The string has ended.
    End,
}

/// Decodes a JSON string after its opening quotation mark.
#[derive(Debug, Clone, Default)]
pub(super) struct StringDecoder {
    escape: Escape,
    /// First half of a surrogate pair.
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Escape {
    #[default]
    None,
    Backslash,
    Digits {
        value: u16,
        n: u8,
    },
}

impl StringDecoder {
    /// Processes the next character. An invalid escape or an unpaired surrogate becomes U+FFFD.
    pub(super) fn take(&mut self, c: char) -> Decoded {
        match self.escape {
            Escape::None if c == '\\' => {
                self.escape = Escape::Backslash;
                Decoded::Nothing
            }
            Escape::None if c == '"' => Decoded::End,
            Escape::None => Decoded::Char(c),
            Escape::Backslash => {
                self.escape = if c == 'u' { Escape::Digits { value: 0, n: 0 } } else { Escape::None };
                match c {
                    'u' => Decoded::Nothing,
                    'n' => Decoded::Char('\n'),
                    't' => Decoded::Char('\t'),
                    'r' => Decoded::Char('\r'),
                    'b' => Decoded::Char('\u{8}'),
                    'f' => Decoded::Char('\u{c}'),
                    other => Decoded::Char(other),
                }
            }
            Escape::Digits { value, n } => {
                let Some(digit) = c.to_digit(16) else {
                    self.escape = Escape::None;
                    return if c == '"' { Decoded::End } else { Decoded::Char(char::REPLACEMENT_CHARACTER) };
                };
                let value = value << 4 | digit as u16;
                self.escape = if n < 3 { Escape::Digits { value, n: n + 1 } } else { Escape::None };
                if n < 3 { Decoded::Nothing } else { self.unit(value) }
            }
        }
    }

    fn unit(&mut self, unit: u16) -> Decoded {
        if let Some(high) = self.high.take()
            && let Some(Ok(c)) = char::decode_utf16([high, unit]).next()
            && c > '\u{ffff}'
        {
            return Decoded::Char(c);
        }
        if (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return Decoded::Nothing;
        }
        Decoded::Char(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

/// Writes `c` as a character of a JSON string.
pub(super) fn escape(c: char, mut write: impl FnMut(char)) {
    let mut pair = |c| {
        write('\\');
        write(c);
    };
    match c {
        '"' | '\\' => pair(c),
        '\n' => pair('n'),
        '\r' => pair('r'),
        '\t' => pair('t'),
        '\u{8}' => pair('b'),
        '\u{c}' => pair('f'),
        '\0'..='\u{1f}' => format!("\\u{:04x}", u32::from(c)).chars().for_each(write),
        _ => write(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_say_what_serde_json_reads() {
        let texts = [r#"a\"b\\\/\b\f\n\r\t"#, r"\u00e9\ud83d\ude00x", "é😀", r"\u0041\u000a"];
        for text in texts {
            let mut decoder = StringDecoder::default();
            let mut said = String::new();
            for c in text.chars() {
                match decoder.take(c) {
                    Decoded::Char(c) => said.push(c),
                    Decoded::Nothing => {}
                    Decoded::End => panic!("{text} ended early"),
                }
            }
            assert_eq!(decoder.take('"'), Decoded::End);
            let expected: String = serde_json::from_str(&format!("\"{text}\"")).expect("a JSON string");
            assert_eq!(said, expected);
            let mut written = String::new();
            said.chars().for_each(|c| escape(c, |c| written.push(c)));
            assert_eq!(format!("\"{written}\""), serde_json::to_string(&said).expect("a string"));
        }
    }

    #[test]
    fn values_end_where_they_end() {
        let cases = [
            (r#"{"a":"}"} "#, 9, Value::Ended),
            ("[[1],{}],", 8, Value::Ended),
            (r#""a\"b" "#, 6, Value::Ended),
            ("12,", 2, Value::EndedBefore),
            ("null}", 4, Value::EndedBefore),
            ("}", 0, Value::EndedBefore),
        ];
        for (text, n, end) in cases {
            let mut span = ValueSpan::default();
            let ends: Vec<Value> =
                text.chars().map(|c| span.take(c)).take_while(|v| *v == Value::Goes).collect();
            let mut span = ValueSpan::default();
            let last = text.chars().map(|c| span.take(c)).find(|v| *v != Value::Goes);
            let n_goes = if end == Value::Ended { n - 1 } else { n };
            assert_eq!((ends.len(), last), (n_goes, Some(end)), "{text}");
        }
    }
}
