//! A model that draws uniformly among the tokens it may, and hurries to the end after a while.

use throng_text::grammar::{ConstraintSpec, GrammarError, GrammarMatcher};
use throng_text::{EncodeOptions, Tokenizer};

use super::vocabularies::{COMPILER, STARTER};

/// An output that a walk made.
#[derive(Debug)]
pub struct Walked {
    /// Its tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Whether it ended by an end token.
    pub is_ended: bool,
}

/// The tokens that a mask allows.
pub fn allowed(words: &[u32]) -> Vec<u32> {
    let bits = |(idx, word): (usize, &u32)| {
        let word = *word;
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| idx as u32 * 32 + bit)
    };
    words.iter().enumerate().flat_map(bits).collect()
}

/// The tokens that may follow an output.
pub fn next(matcher: &GrammarMatcher, output: &[u32]) -> Result<Vec<u32>, GrammarError> {
    let mut words = vec![u32::MAX; matcher.grammar().n_tokens().div_ceil(32)];
    matcher.mask(output, &mut words)?;
    Ok(allowed(&words))
}

/// Draws tokens until an end token or `max_tokens`; after `patience` of them prefers to end. Writes no number
/// that the validator's double precision could not tell from another.
pub fn walk(
    matcher: &GrammarMatcher,
    tokenizer: &Tokenizer,
    rng: &mut fastrand::Rng,
    patience: usize,
    max_tokens: usize,
) -> Result<Walked, GrammarError> {
    let mut tokens: Vec<u32> = Vec::new();
    let mut text: Vec<u8> = Vec::new();
    let is_end = |token: u32| matcher.grammar().end_tokens().contains(&token);
    while tokens.len() < max_tokens && !tokens.last().is_some_and(|token| is_end(*token)) {
        let choices = next(matcher, &tokens)?;
        assert!(!choices.is_empty(), "nothing may follow {:?}", tokenizer.decode(&tokens, false));
        let bytes = |token: &u32| tokenizer.token_bytes(*token).unwrap_or_default();
        let pick = |keep: &dyn Fn(&u32) -> bool| {
            let kept: Vec<u32> = choices.iter().copied().filter(|token| keep(token)).collect();
            (!kept.is_empty()).then_some(kept)
        };
        let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
        let n_number = text.iter().rev().take_while(|byte| is_number(byte)).count();
        let number_goes_on = |token: &u32| !is_end(*token) && bytes(token).first().is_some_and(&is_number);
        let has_exponent = |token: &u32| bytes(token).iter().any(|byte| matches!(byte, b'e' | b'E'));
        let in_time = tokens.len() < patience;
        let mut from = None;
        if n_number > 0 && (n_number > 10 || text.ends_with(b"e") || text.ends_with(b"E")) {
            from = pick(&|token| !number_goes_on(token));
        } else if n_number > 0 {
            from = pick(&|token| bytes(token).len() <= 4 && !has_exponent(token) || is_end(*token));
        }
        if !in_time && rng.f32() < 0.8 {
            let closes = |token: &u32| matches!(bytes(token), b"\"" | b"}" | b"]" | b"\"}" | b"@" | b"0");
            from = pick(&|token| is_end(*token))
                .or_else(|| pick(&|token| bytes(token) == b"\"").filter(|_| rng.bool()))
                .or_else(|| pick(&closes).filter(|_| from.is_none()))
                .or(from);
        }
        let from = from.as_ref().unwrap_or(&choices);
        let token = from[rng.usize(..from.len())];
        text.extend_from_slice(bytes(&token));
        tokens.push(token);
    }
    let is_ended = tokens.last().is_some_and(|token| is_end(*token));
    let text = tokenizer.decode(&tokens[..tokens.len() - usize::from(is_ended)], false);
    Ok(Walked { tokens, text, is_ended })
}

/// Whether the starter model may write `text` and end: each token of it and then an end token is allowed.
pub fn accepts(matcher: &GrammarMatcher, text: &str) -> bool {
    tries(matcher, text).unwrap()
}

/// [`accepts`], with the error of a grammar that is too complex to tell.
pub fn tries(matcher: &GrammarMatcher, text: &str) -> Result<bool, GrammarError> {
    let options = EncodeOptions { add_special_tokens: false, parse_special: false };
    let mut tokens = STARTER.encode(text, options).unwrap();
    tokens.push(matcher.grammar().end_tokens()[0]);
    for idx in 0..tokens.len() {
        if !next(matcher, &tokens[..idx])?.contains(&tokens[idx]) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A matcher of a constraint on the starter model.
pub fn matcher(spec: ConstraintSpec) -> GrammarMatcher {
    let grammar = COMPILER.compile(&spec).unwrap_or_else(|error| panic!("{spec:?}: {error}"));
    GrammarMatcher::new(grammar, 1)
}

/// The seed of a random test: from the environment where it is to be run again, and printed.
pub fn seed(test: &str) -> u64 {
    let seed = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("run again: THRONG_SEED={seed} cargo test -p throng-text --test integration grammar {test}");
    seed
}
