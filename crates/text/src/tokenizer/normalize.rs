//! Runs normalizers with a limit on the text's size, checked before and after each of them. The normalizers
//! of a malicious file could turn a few bytes into gigabytes; those of real models at most triple a text,
//! except for single characters that expand to many. Does not know tokens.

use std::borrow::Cow;
use std::cell::Cell;

use tokenizers::normalizers::replace::Replace;
use tokenizers::pipeline::{Normalizer, PipelineNormalizer, normalize_all};

use super::charsmap;
use crate::error::TokenizerError;

/// Limit on normalized bytes: a factor of the text's bytes, and a constant for short texts.
const FACTOR: usize = 32;
const BASE_BYTES: usize = 64 << 10;

/// Maximum number of normalizers of a tokenizer.
const MAX_NORMALIZERS: usize = 64;
/// Maximum bytes of all strings that normalizers insert, each counted once.
const MAX_CONTENT_BYTES: usize = 1024;
/// Maximum bytes that a table maps a character to; the longest of Unicode's compatibility mappings has 33.
const MAX_MAPPED_BYTES: usize = 64;

/// Checks that normalizers are within the limits.
pub(super) fn check(normalizers: &[PipelineNormalizer]) -> Result<(), TokenizerError> {
    if normalizers.len() > MAX_NORMALIZERS {
        let reason =
            format!("it has {} normalizers; the most accepted is {MAX_NORMALIZERS}", normalizers.len());
        return Err(TokenizerError::Malformed(reason));
    }
    let content = normalizers.iter().map(|normalizer| match normalizer {
        PipelineNormalizer::Replace(replace) => replace.content.len(),
        PipelineNormalizer::Prepend(prepend) => prepend.prepend.len(),
        _ => 0,
    });
    let n_bytes = content.fold(0, usize::saturating_add);
    if n_bytes > MAX_CONTENT_BYTES {
        let reason =
            format!("its normalizers write {n_bytes} bytes; the most accepted is {MAX_CONTENT_BYTES}");
        return Err(TokenizerError::Malformed(reason));
    }
    for normalizer in normalizers {
        let PipelineNormalizer::Precompiled(precompiled) = normalizer else { continue };
        let charsmap = precompiled.charsmap().unwrap_or_default();
        if !charsmap::is_sound(charsmap) {
            let reason = "its normalizer's map of characters points out of itself".to_owned();
            return Err(TokenizerError::Malformed(reason));
        }
        if longest_mapping(charsmap) > MAX_MAPPED_BYTES {
            let reason = format!("its normalizer maps a character to more than {MAX_MAPPED_BYTES} bytes");
            return Err(TokenizerError::Malformed(reason));
        }
    }
    Ok(())
}

/// Bytes of the longest string of a precompiled map: the length of a trie, the trie, and zero-terminated
/// strings.
fn longest_mapping(charsmap: &[u8]) -> usize {
    let Some((length, rest)) = charsmap.split_first_chunk::<4>() else { return 0 };
    let strings = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    strings.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// Number of bytes that normalizers may still write for a text, or for several together.
pub(super) struct Growth {
    left_bytes: Cell<usize>,
}

impl Growth {
    /// Creates the budget for texts of this total size in bytes.
    pub(super) fn of(n_bytes: usize) -> Self {
        Self { left_bytes: Cell::new(n_bytes.saturating_mul(FACTOR).saturating_add(BASE_BYTES)) }
    }

    /// Runs `normalizers` on `text`, which starts at byte `offset` of its sequence.
    ///
    /// # Errors
    /// When the result exceeds the budget, as an error of the library's type.
    pub(super) fn normalize<'a>(
        &self,
        normalizers: &[PipelineNormalizer],
        text: &'a str,
        offset: usize,
    ) -> tokenizers::Result<Cow<'a, str>> {
        let limit = self.left_bytes.get();
        let too_long = || format!("its normalizers make more than {limit} bytes of it");
        let mut text = Cow::Borrowed(text);
        for normalizer in normalizers {
            if most_bytes(normalizer, &text, limit)? > limit {
                return Err(too_long().into());
            }
            let step = std::slice::from_ref(normalizer);
            text = match text {
                Cow::Borrowed(text) => normalize_all(step, text, offset)?,
                Cow::Owned(text) => match normalize_all(step, &text, offset)? {
                    Cow::Borrowed(same) if same.len() == text.len() => Cow::Owned(text),
                    changed => Cow::Owned(changed.into_owned()),
                },
            };
            if text.len() > limit {
                return Err(too_long().into());
            }
        }
        self.left_bytes.set(limit - text.len().min(limit));
        Ok(text)
    }
}

/// Upper bound on the bytes that a normalizer produces from `text`: exact only if a cheap bound exceeds
/// `limit`.
fn most_bytes(normalizer: &PipelineNormalizer, text: &str, limit: usize) -> tokenizers::Result<usize> {
    match normalizer {
        PipelineNormalizer::Prepend(prepend) => Ok(text.len().saturating_add(prepend.prepend.len())),
        PipelineNormalizer::Replace(replace) => {
            let matched_everywhere = (text.len() + 1).saturating_mul(replace.content.len());
            if text.len().saturating_add(matched_everywhere) <= limit {
                return Ok(limit);
            }
            // Counts a pattern's matches without reimplementing the search: the difference in length
            // between replacing each match by one byte and by none.
            let len_with = |content: &str| -> tokenizers::Result<usize> {
                Ok(Replace::new(replace.pattern().clone(), content)?.normalize(text, 0)?.len())
            };
            let bare = len_with("")?;
            let n_matches = len_with("x")? - bare;
            Ok(bare.saturating_add(n_matches.saturating_mul(replace.content.len())))
        }
        PipelineNormalizer::Precompiled(precompiled) => {
            let longest = longest_mapping(precompiled.charsmap().unwrap_or_default());
            if text.len().saturating_mul(longest.max(1)) <= limit {
                return Ok(limit);
            }
            // ASCII characters are mapped one by one, except for CR LF.
            let mut buffer = [0; 4];
            let bytes = text.chars().map(|c| match c {
                ' '..='~' => precompiled.parsed().transform(c.encode_utf8(&mut buffer)).map_or(1, str::len),
                _ => longest.max(c.len_utf8()),
            });
            Ok(bytes.fold(0, usize::saturating_add))
        }
        // These expand a text by a small factor: compatibility mappings turn a character into at most 18.
        _ => Ok(limit),
    }
}

/// Normalizers that share one budget, as a normalizer of the library.
pub(super) struct BoundedChain<'a> {
    pub(super) normalizers: &'a [PipelineNormalizer],
    pub(super) growth: Growth,
}

impl Normalizer for BoundedChain<'_> {
    fn normalize<'a>(&self, input: &'a str, offset: usize) -> tokenizers::Result<Cow<'a, str>> {
        self.growth.normalize(self.normalizers, input, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_counted_exactly() {
        use tokenizers::normalizers::replace::ReplacePattern;
        for (pattern, text, n_bytes) in [
            (ReplacePattern::String("a".into()), "banana", 3 + 3 * 4),
            (ReplacePattern::Regex(r"\s+".into()), "a  b c ", 3 + 3 * 4),
            (ReplacePattern::Regex("(?=a)|$".into()), "banana", 6 + 4 * 4),
            (ReplacePattern::Regex("x".into()), "banana", 6),
        ] {
            let replace = PipelineNormalizer::Replace(Replace::new(pattern, "1234").unwrap());
            assert_eq!(most_bytes(&replace, text, 0).unwrap(), n_bytes, "{replace:?}");
            assert_eq!(replace.normalize(text, 0).unwrap().len(), n_bytes, "{replace:?}");
        }
    }

    #[test]
    fn the_longest_string_of_a_map_is_found() {
        assert_eq!(longest_mapping(b"\x02\0\0\0tt\0abc\0de"), 3);
        assert_eq!(longest_mapping(b"\xff\xff\xff\xffabc"), 0);
        assert_eq!(longest_mapping(b""), 0);
    }
}
