//! Masks of tokens.

use throng_core::constraint::TokenMask;
use throng_core::request::TokenId;

#[test]
fn a_mask_holds_tokens_of_its_vocabulary_only() {
    for vocabulary_size in [1, 31, 32, 33, 64, 100] {
        let mut mask = TokenMask::new(vocabulary_size);
        assert!(mask.is_empty());
        for token in [0, 31, 32, vocabulary_size - 1, vocabulary_size, 1000] {
            mask.allow(token);
            assert_eq!(mask.contains(token), token < vocabulary_size, "{token} of {vocabulary_size}");
        }
        mask.ban(0);
        mask.ban(1000);
        let expected: Vec<TokenId> =
            (1..vocabulary_size).filter(|t| [31, 32, vocabulary_size - 1].contains(t)).collect();
        assert_eq!(mask.tokens().collect::<Vec<_>>(), expected);
        assert_eq!(mask.n_allowed(), expected.len());
        mask.set_words(&[u32::MAX; 10]);
        assert_eq!(mask.n_allowed(), vocabulary_size as usize);
        let mut all = TokenMask::new(vocabulary_size);
        all.allow_all();
        assert_eq!(mask, all);
        mask.set_words(&[2]);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), (1..2.min(vocabulary_size)).collect::<Vec<_>>());
        mask.reset(7);
        assert!(mask.is_empty() && mask.vocabulary_size() == 7);
    }
}
