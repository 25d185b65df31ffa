//! The detokenizer equals one-shot decoding, on random tokens (including invalid UTF-8) and random stop
//! strings.

use std::sync::Arc;

use crate::support::tokenizer;
use fastrand::Rng;
use throng_text::{DetokenizeOptions, Detokenizer, EncodeOptions, Tokenizer};

/// Reference: the text cut at the stop string that is complete first (the longest, if several end there), by
/// trying every end.
fn cut(text: &str, stop: &[String], include: bool) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let complete = stop.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let complete = complete.filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        // Of equal stop strings the first, since the result has the index of the stop string.
        if let Some((idx, stop)) = complete.rev().max_by_key(|(_, stop)| stop.len()) {
            return (text[..if include { end } else { end - stop.len() }].to_owned(), Some(idx));
        }
    }
    (text.to_owned(), None)
}

/// Stop strings that are likely to occur: parts of the text, parts joined together, and none.
fn random_stops(random: &mut Rng, text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let piece = |random: &mut Rng| -> String {
        let start = random.usize(..=chars.len());
        chars[start..(start + random.usize(..5)).min(chars.len())].iter().collect()
    };
    let n_stops = random.usize(..4);
    (0..n_stops)
        .map(|_| match random.u8(..4) {
            0 => piece(random) + &piece(random),
            1 => piece(random) + "x",
            _ => piece(random),
        })
        .collect()
}

fn check(tokenizer: &Arc<Tokenizer>, tokens: &[u32], options: DetokenizeOptions, what: &str) {
    let whole = tokenizer.decode(tokens, options.skip_special_tokens);
    let (expected, expected_stop) = cut(&whole, &options.stop, options.include_stop_str_in_output);
    let stop = options.stop.clone();
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), options);
    let (mut text, mut stopped) = (String::new(), None);
    for &token in tokens {
        let delta = detokenizer.push(token);
        assert!(stopped.is_none() || delta.text.is_empty(), "{what}: text after the stop string");
        text.push_str(&delta.text);
        stopped = stopped.or(delta.stopped);
        assert!(whole.starts_with(&text), "{what}: {text:?} is not the start of {whole:?}");
    }
    text.push_str(&detokenizer.finish());
    assert_eq!(text, expected, "{what}, stops {stop:?}, tokens {tokens:?}");
    // A stop string may become complete only when the sequence ends in the middle of a character.
    if !expected.ends_with('\u{fffd}') && !stop.iter().any(|stop| stop.contains('\u{fffd}')) {
        assert_eq!(stopped, expected_stop, "{what}, stops {stop:?}, tokens {tokens:?}");
    }
}

#[test]
fn deltas_add_up_to_a_one_shot_decode_cut_at_the_stop() {
    for name in
        ["byte_level_llama3", "sentencepiece_legacy", "sentencepiece_no_prefix", "unigram", "wordpiece"]
    {
        let tokenizer = Arc::new(tokenizer(name));
        let size = tokenizer.vocabulary_size() as u32;
        for seed in 0..2_000 {
            let mut random = Rng::with_seed(seed);
            // A small pool makes repetitions, and with them overlapping stops, likely.
            let pool: Vec<u32> = (0..random.usize(1..12)).map(|_| random.u32(..size + 2)).collect();
            let tokens: Vec<u32> =
                (0..random.usize(..40)).map(|_| pool[random.usize(..pool.len())]).collect();
            let skip_special_tokens = random.bool();
            let whole = tokenizer.decode(&tokens, skip_special_tokens);
            let options = DetokenizeOptions {
                skip_special_tokens,
                stop: random_stops(&mut random, &whole),
                include_stop_str_in_output: random.bool(),
                ..DetokenizeOptions::default()
            };
            check(&tokenizer, &tokens, options, &format!("{name}, seed {seed}"));
        }
    }
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special_tokens: false, parse_special: false }).unwrap()
}

#[test]
fn a_possible_stop_string_is_held_back_and_released() {
    let tokenizer = Arc::new(tokenizer("byte_level_llama3"));
    let options =
        DetokenizeOptions { stop: vec!["END".to_owned(), "ENOUGH".to_owned()], ..Default::default() };
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), options);
    let mut push = |text: &str| -> String {
        plain(&tokenizer, text).iter().map(|id| detokenizer.push(*id).text).collect()
    };
    assert_eq!(push("the "), "the ");
    assert_eq!(push("EN"), "");
    assert_eq!(push("O"), "");
    assert_eq!(push("x"), "ENOx");
    assert_eq!(push("E"), "");
    assert_eq!(push("END after"), "E");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn a_split_character_is_sent_whole() {
    let tokenizer = Arc::new(tokenizer("byte_level_gpt2"));
    let ids = plain(&tokenizer, "🦙");
    assert!(ids.len() > 1, "the llama is not a token of so small a vocabulary");
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), DetokenizeOptions::default());
    let (last, before) = ids.split_last().unwrap();
    assert!(before.iter().all(|id| detokenizer.push(*id).text.is_empty()));
    assert_eq!(detokenizer.push(*last).text, "🦙");
    detokenizer.push(ids[0]);
    assert_eq!(detokenizer.finish(), "\u{fffd}");
}

#[test]
fn the_first_space_is_kept_if_text_precedes() {
    let tokenizer = Arc::new(tokenizer("sentencepiece_legacy"));
    let ids = plain(&tokenizer, "the fox");
    let text = |continues_prompt| {
        let options = DetokenizeOptions { continues_prompt, ..DetokenizeOptions::default() };
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), options);
        ids.iter().map(|id| detokenizer.push(*id).text).collect::<String>() + &detokenizer.finish()
    };
    assert_eq!(text(false), "the fox");
    assert_eq!(text(true), " the fox");
}

#[test]
fn decoding_inverts_encoding_for_any_text() {
    for name in ["byte_level_gpt2", "byte_level_llama3", "sentencepiece_legacy", "sentencepiece_no_prefix"] {
        let tokenizer = tokenizer(name);
        for seed in 0..500 {
            let mut random = Rng::with_seed(seed);
            let text: String = (0..random.usize(..60))
                .map(|_| match random.u8(..5) {
                    0 => random.char('\0'..='\u{7f}'),
                    1 => random.char('\0'..='\u{2fff}'),
                    2 => random.char(..),
                    _ => random.choice([' ', '\n', 'a', '<', '|', 'e', 't', '\u{301}']).unwrap(),
                })
                // SentencePiece cannot distinguish its word boundary from this character in a text.
                .filter(|c| *c != '▁')
                .collect();
            assert_eq!(tokenizer.decode(&plain(&tokenizer, &text), false), text, "{name}, seed {seed}");
        }
    }
}
