//! Decodes UTF-8 that arrives in arbitrary pieces. Does not know tokens.

/// Decodes like `String::from_utf8_lossy` on the whole input, but holds back an incomplete character.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    /// Start of an incomplete character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Processes `bytes`; returns the characters that are complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(n_bad) = error.error_len() else {
                        rest = bad;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[n_bad..];
                }
            }
        }
        let n_done = self.pending.len() - rest.len();
        self.pending.drain(..n_done);
        text
    }

    /// The replacement for an incomplete character at the end of the stream.
    pub(crate) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}
