//! Texts that no person writes, for every kind of tokenizer: none makes it panic, and all that it gives are
//! ids of its vocabulary, which decode.

use std::path::Path;

use fastrand::Rng;
use throng_text::{EncodeOptions, Tokenizer};

/// Beginnings of ranges of characters that pre-tokenizers and normalizers treat in ways of their own.
const RANGES: &[(u32, u32)] = &[
    (0x00, 0x20),
    (0x20, 0x7f),
    (0x7f, 0x100),
    (0x300, 0x370),
    (0x590, 0x700),
    (0x900, 0x980),
    (0xe00, 0xe80),
    (0x1100, 0x1200),
    (0x1680, 0x1690),
    (0x2000, 0x2070),
    (0x2100, 0x2200),
    (0x2580, 0x2590),
    (0x3000, 0x3100),
    (0x4e00, 0x4e20),
    (0xac00, 0xac20),
    (0xd7b0, 0xd800),
    (0xe000, 0xe010),
    (0xf900, 0xfa00),
    (0xfb00, 0xfb50),
    (0xfdf0, 0xfe10),
    (0xfe20, 0xfe30),
    (0xff00, 0xfff0),
    (0xfff0, 0x10000),
    (0x1d160, 0x1d170),
    (0x1f1e6, 0x1f200),
    (0x1f3fb, 0x1f400),
    (0x1f600, 0x1f610),
    (0x2f800, 0x2f810),
    (0xe0000, 0xe0080),
    (0xf0000, 0xf0010),
    (0x10fff0, 0x110000),
];
const WORDS: &[&str] = &[
    "'s",
    "'LL",
    "\r\n",
    "\u{2581}",
    "<0x0A>",
    "##",
    "<unk>",
    "</s>",
    "12345",
    "a\u{301}",
    "🇩🇪",
    "👩‍👩‍👧",
    "İ",
    "ß",
    "ﷺ",
];

fn text(random: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..random.usize(..12) {
        let (start, end) = RANGES[random.usize(..RANGES.len())];
        let character = |random: &mut Rng| char::from_u32(random.u32(start..end)).unwrap_or('\u{fffd}');
        match random.u8(..5) {
            0 => text.push_str(WORDS[random.usize(..WORDS.len())]),
            1 => {
                let one = character(random);
                let n = [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 1000][random.usize(..12)];
                text.extend(std::iter::repeat_n(one, n));
            }
            _ => text.extend((0..random.usize(..40)).map(|_| character(random))),
        }
    }
    text
}

fn check(tokenizer: &Tokenizer, text: &str, seed: u64) {
    for (add_special_tokens, parse_special) in [(true, true), (false, false)] {
        let options = EncodeOptions { add_special_tokens, parse_special };
        let Ok(ids) = tokenizer.encode(text, options) else { continue };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_size()), "seed {seed}");
        tokenizer.decode(&ids, parse_special);
    }
}

#[test]
fn no_text_makes_a_tokenizer_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut n_tokenizers = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".json") || name.ends_with(".expected.json") {
            continue;
        }
        let tokenizer = Tokenizer::from_tokenizer_json(&std::fs::read(&path).unwrap(), None).unwrap();
        let mut random = Rng::with_seed(seed);
        for _ in 0..400 {
            check(&tokenizer, &text(&mut random), seed);
        }
        let n_ids = tokenizer.vocabulary_size() as u32;
        for _ in 0..200 {
            let ids: Vec<u32> = (0..random.usize(..50))
                .map(|_| if random.u8(..20) == 0 { random.u32(..) } else { random.u32(..n_ids.max(1)) })
                .collect();
            tokenizer.decode(&ids, true);
            tokenizer.decode(&ids, false);
        }
        n_tokenizers += 1;
    }
    assert!(n_tokenizers >= 8, "{n_tokenizers}");
}
