//! Rules for texts, whole and in pieces: what is shown does not depend on how a text was cut, and never has a
//! part of a match.

use std::sync::Arc;

use fastrand::Rng;
use throng_text::moderation::{Found, RuleError, RuleSet, TextFilter, TextRule};

fn literals(texts: &[&str]) -> TextRule {
    TextRule::Literals(texts.iter().map(|&text| text.to_owned()).collect())
}

fn regex(pattern: &str) -> TextRule {
    TextRule::Regex(pattern.to_owned())
}

fn rules(rules: &[TextRule]) -> Arc<RuleSet> {
    Arc::new(RuleSet::new(rules).expect("rules"))
}

/// What is shown of a text in these pieces; checks that nothing shown is taken back.
fn filtered(rules: &Arc<RuleSet>, pieces: &[&str]) -> (usize, Option<Found>) {
    let mut filter = TextFilter::new(rules.clone());
    let (mut n_shown, mut n_bytes) = (0, 0);
    for piece in pieces {
        n_bytes += piece.len();
        let now = filter.push(piece);
        assert!((n_shown..=n_bytes).contains(&now), "{pieces:?}: {n_shown}, then {now}");
        n_shown = now;
    }
    let end = filter.finish();
    assert!(end >= n_shown, "{pieces:?}");
    (end, filter.found())
}

/// All ways to cut a text in two, and into single characters.
fn splits(text: &str) -> Vec<Vec<&str>> {
    let boundaries = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let mut splits: Vec<Vec<&str>> = boundaries.map(|at| vec![&text[..at], &text[at..]]).collect();
    splits.push(text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect());
    splits.push(vec![text]);
    splits
}

#[test]
fn what_is_shown_does_not_depend_on_the_cuts() {
    for (set, text, shown, rule) in [
        (vec![literals(&["secret"])], "the SECRET is out", "the ", Some(0)),
        (vec![literals(&["secret"])], "the secre is not", "the secre is not", None),
        (vec![literals(&["bcde", "abcdefg"])], "xabcdefg", "xa", Some(0)),
        (vec![literals(&["cde"]), literals(&["abcde"])], "xabcde", "x", Some(1)),
        (vec![regex(r"\bbad\b")], "badminton, bad luck", "badminton, ", Some(0)),
        (vec![regex(r"\bbad\b")], "badminton", "badminton", None),
        (vec![regex(r"\bbad\b")], "too bad", "too ", Some(0)),
        (vec![regex(r"bad$")], "bad, bad", "bad, ", Some(0)),
        (vec![regex(r"^bad")], "so bad", "so bad", None),
        (vec![regex(r"^bad")], "bad so", "", Some(0)),
        (vec![regex(r"[0-9]{4}-[0-9]{4}")], "call 123-4567 or 1234-5678", "call 123-4567 or ", Some(0)),
        (vec![regex(r"k.{0,5}ö")], "ein Knäböt", "ein ", Some(0)),
        (vec![regex(r"\w{2,9}@\w{2,9}")], "mail me@there now", "mail ", Some(0)),
    ] {
        let set = rules(&set);
        for pieces in splits(text) {
            let (n_shown, found) = filtered(&set, &pieces);
            assert_eq!(&text[..n_shown], shown, "{pieces:?}");
            assert_eq!(found.map(|found| found.rule), rule, "{pieces:?}");
        }
        assert_eq!(set.matching(text).is_empty(), rule.is_none(), "{text}");
    }
}

#[test]
fn random_texts_in_random_pieces() {
    let mut rng = Rng::with_seed(1);
    let letters = ["a", "b", "ä", " ", "😀"];
    let mut n_found = 0;
    for _ in 0..2_000 {
        let text = |rng: &mut Rng, n| (0..n).map(|_| letters[rng.usize(..5)]).collect::<String>();
        let patterns = [r"\ba{2,3}\b", "ab", "b.a", "ä{1,3}?b", "aab", " 😀", "ba$"];
        let n_patterns = rng.usize(1..4);
        let set: Vec<TextRule> = (0..n_patterns).map(|_| regex(patterns[rng.usize(..7)])).collect();
        let Ok(set) = RuleSet::new(&set) else { continue };
        let set = Arc::new(set);
        let n = rng.usize(..24);
        let whole = text(&mut rng, n);
        let expected = filtered(&set, &[&whole]);
        n_found += u32::from(expected.1.is_some());
        assert_eq!(expected.1.is_some(), !set.matching(&whole).is_empty(), "{whole:?}");
        let mut pieces = Vec::new();
        let mut rest = whole.as_str();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(rest.floor_char_boundary(rng.usize(..rest.len() + 4)));
            pieces.push(piece);
            rest = more;
        }
        assert_eq!(filtered(&set, &pieces), expected, "{pieces:?}");
    }
    assert!(n_found > 200, "{n_found}");
}

#[test]
fn a_long_text_is_held_back_by_a_match_only() {
    let set = rules(&[literals(&["forbidden"])]);
    let mut filter = TextFilter::new(set);
    let mut n_bytes = 0;
    for _ in 0..10_000 {
        n_bytes += "some text ".len();
        assert!(filter.push("some text ") + "forbidden".len() >= n_bytes - 1);
    }
    assert_eq!(filter.finish(), n_bytes);
}

#[test]
fn rules_that_no_stream_can_be_searched_for_are_refused() {
    let error = |rule| RuleSet::new(&[literals(&["fine"]), rule]).expect_err("refused");
    assert!(matches!(error(regex("(")), RuleError::Syntax { rule: 1, .. }));
    assert!(matches!(error(regex(r"(a)\1")), RuleError::Syntax { rule: 1, .. }));
    assert_eq!(error(regex("a*")), RuleError::Empty { rule: 1 });
    assert_eq!(error(literals(&[""])), RuleError::Empty { rule: 1 });
    assert_eq!(error(regex("a+")), RuleError::TooLong { rule: 1 });
    assert_eq!(error(regex(".{2000}")), RuleError::TooLong { rule: 1 });
    assert!(matches!(
        error(regex(r"(\w{1,9}\pL{1,9}){20}x{1,99}")),
        RuleError::TooLong { .. } | RuleError::TooLarge(_)
    ));
}
