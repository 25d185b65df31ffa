//! Drafts that are looked up in a sequence.

use throng_core::request::TokenId;
use throng_core::scheduling::speculation::PromptLookup;

fn proposed(lookup: &mut PromptLookup, tokens: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut drafts = Vec::new();
    lookup.propose(tokens, n, &mut drafts);
    drafts
}

#[test]
fn what_followed_the_end_before() {
    let mut lookup = PromptLookup::new(2);
    assert!(proposed(&mut lookup, &[1], 4).is_empty());
    assert!(proposed(&mut lookup, &[1, 2, 3, 4, 1], 4).is_empty());
    assert_eq!(proposed(&mut lookup, &[1, 2, 3, 4, 1, 2], 2), [3, 4]);
    // The copy reaches the end and goes on with itself.
    assert_eq!(proposed(&mut lookup, &[1, 2, 3, 4, 1, 2], 7), [3, 4, 1, 2, 3, 4, 1]);
    assert_eq!(proposed(&mut PromptLookup::new(3), &[9, 9, 9, 9], 3), [9, 9, 9]);
}

#[test]
fn the_longest_match_wins_and_then_the_newest() {
    let tokens = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2];
    assert_eq!(proposed(&mut PromptLookup::new(2), &tokens, 1), [7]);
    let tokens = [5, 1, 2, 7, 5, 1, 2, 8, 5, 1, 2];
    assert_eq!(proposed(&mut PromptLookup::new(2), &tokens, 1), [8]);
}

/// Whether `drafts` go on as an earlier occurrence of the last `min_match` tokens does.
fn repeats(tokens: &[TokenId], min_match: usize, drafts: &[TokenId]) -> bool {
    (min_match..tokens.len()).any(|position| {
        let text: Vec<TokenId> = tokens.iter().chain(drafts).copied().collect();
        tokens[..position].ends_with(&tokens[tokens.len() - min_match..])
            && text[position..].starts_with(drafts)
    })
}

#[test]
fn the_index_grows_with_the_tokens() {
    let mut n_found = 0;
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (min_match, n_kinds) = (rng.usize(1..5), rng.u32(2..6));
        let (mut lookup, mut tokens) = (PromptLookup::new(min_match), Vec::new());
        while tokens.len() < 300 {
            tokens.extend((0..rng.usize(1..9)).map(|_| rng.u32(..n_kinds)));
            let n = rng.usize(1..20);
            let drafts = proposed(&mut lookup, &tokens, n);
            let of_fresh = proposed(&mut PromptLookup::new(min_match), &tokens, n);
            assert_eq!(drafts, of_fresh, "seed {seed}");
            if !drafts.is_empty() {
                assert!(drafts.len() == n && repeats(&tokens, min_match, &drafts), "seed {seed}");
                n_found += 1;
            }
        }
    }
    assert!(n_found > 1000, "{n_found}");
}
