//! Wraps text for a terminal between words: whole messages, and answers that arrive in pieces. Does not
//! know where the text comes from.

/// Number of columns between tab stops.
const TAB: usize = 8;
/// Minimum width in columns; text for narrower terminals is not wrapped.
const MIN_WIDTH: usize = 20;

/// Wraps lines between words. Holds a word back until it is known to fit.
#[derive(Debug, Default)]
pub struct Wrapper {
    /// Width of the terminal in columns; `None`: no wrapping.
    width: Option<usize>,
    /// Number of used columns, without the word that is held back.
    column: usize,
    /// Spaces before the word; a line break replaces them.
    spaces: String,
    word: String,
}

impl Wrapper {
    /// Creates a wrapper for a terminal of this width; for `None` one that wraps nothing.
    pub fn new(width: Option<usize>) -> Self {
        Self { width: width.filter(|width| *width >= MIN_WIDTH), ..Self::default() }
    }

    /// Adds `piece` and returns the text that can be printed.
    pub fn push(&mut self, piece: &str) -> String {
        if self.width.is_none() {
            return piece.to_owned();
        }
        let mut out = String::new();
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    self.spaces.clear();
                    self.column = 0;
                    out.push(c);
                }
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.spaces.push(c);
                }
                // Scripts without spaces may be broken anywhere.
                c if is_wide(c) => {
                    self.end_word(&mut out);
                    self.word.push(c);
                    self.end_word(&mut out);
                }
                c => {
                    self.word.push(c);
                    // A word longer than a line must be broken.
                    if self.width.is_some_and(|width| columns(&self.word) >= width) {
                        self.end_word(&mut out);
                    }
                }
            }
        }
        out
    }

    /// Returns the held-back text.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out.push_str(&std::mem::take(&mut self.spaces));
        self.column = 0;
        out
    }

    /// Emits the word, on a new line if it does not fit after the spaces before it.
    fn end_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let spaces = std::mem::take(&mut self.spaces);
        let word = std::mem::take(&mut self.word);
        let needed = columns(&spaces) + columns(&word);
        let fits = self.width.is_none_or(|width| self.column + needed <= width);
        if fits || self.column == 0 {
            out.push_str(&spaces);
            self.column += needed;
        } else {
            out.push('\n');
            self.column = columns(&word);
        }
        out.push_str(&word);
    }
}

/// Wraps a whole message.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let mut wrapper = Wrapper::new(width);
    let shown = wrapper.push(text);
    shown + &wrapper.finish()
}

/// Number of columns of a text, without escape sequences for colours.
fn columns(text: &str) -> usize {
    let (mut n, mut in_sequence) = (0, false);
    for c in text.chars() {
        match c {
            '\u{1b}' => in_sequence = true,
            'm' if in_sequence => in_sequence = false,
            _ if in_sequence => {}
            '\t' => n += TAB,
            c => n += 1 + usize::from(is_wide(c)),
        }
    }
    n
}

/// Whether a character takes two columns: East Asian scripts, full-width forms and pictographs (Unicode's
/// East Asian Width W and F, by block).
fn is_wide(c: char) -> bool {
    matches!(c as u32, 0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1FAFF | 0x20000..=0x3FFFD)
}

/// Columns of a stream's terminal; `None` if it is not a terminal.
#[cfg(unix)]
pub fn terminal_width(stream: &(impl std::os::fd::AsFd + std::io::IsTerminal)) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok().filter(|_| stream.is_terminal())?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns `None`: on other systems the terminal wraps lines.
#[cfg(not(unix))]
pub fn terminal_width(_: &impl std::io::IsTerminal) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wraps a text that comes in pieces of `n` characters.
    fn in_pieces(text: &str, n: usize, width: usize) -> String {
        let mut wrapper = Wrapper::new(Some(width));
        let characters: Vec<char> = text.chars().collect();
        let shown: String =
            characters.chunks(n).map(|piece| wrapper.push(&piece.iter().collect::<String>())).collect();
        shown + &wrapper.finish()
    }

    #[test]
    fn lines_are_broken_between_words_however_the_text_comes() {
        let text =
            "The quick brown fox jumps over the lazy dog, and  then\nsleeps: antidisestablishmentarianism.  ";
        let expected = "The quick brown fox\njumps over the lazy\ndog, and  then\nsleeps:\nantidisestablishment\narianism.  ";
        for n in [1, 2, 3, 7, 1000] {
            assert_eq!(in_pieces(text, n, 20), expected, "{n}");
        }
    }

    #[test]
    fn nothing_is_lost_and_no_line_is_too_long() {
        let texts = [
            "  let x = 1;\n    if x { }\n",
            "日本語の文章はどこでも折り返すことができます。",
            "a\u{1b}[2mb\u{1b}[0m c",
        ];
        for text in texts {
            let shown = in_pieces(text, 1, 24);
            let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(plain(&shown), plain(text));
            assert!(shown.lines().all(|line| columns(line) <= 24), "{shown}");
        }
        assert_eq!(wrapped(texts[0], None), texts[0]);
        assert_eq!(wrapped("too narrow to be broken", Some(5)), "too narrow to be broken");
    }
}
