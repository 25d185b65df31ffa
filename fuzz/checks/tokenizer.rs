//! Any bytes as a `tokenizer.json`: refused, or a tokenizer that encodes and decodes without panicking and
//! gives ids of its own vocabulary.

use throng_text::{EncodeOptions, Tokenizer};

const TEXT: &str = "Hello,  wörld!\n\t日本 12345 <|im_start|>🙂";

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_tokenizer_json(bytes, None) else { return };
    let options = EncodeOptions { add_special_tokens: true, parse_special: true };
    if let Ok(ids) = tokenizer.encode(TEXT, options) {
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_size()));
        tokenizer.decode(&ids, false);
        tokenizer.decode(&ids, true);
    }
}
