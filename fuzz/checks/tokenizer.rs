//! Any bytes as a `tokenizer.json`, or as a vocabulary file that is converted into one: refused, or a
//! tokenizer that encodes and decodes without panicking and gives ids of its own vocabulary.

use throng_text::{EncodeOptions, OriginalVocabulary, Tokenizer};

const TEXT: &str = "Hello,  wörld!\n\t日本 12345 <|im_start|>🙂";

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    use_tokenizer(bytes, None);
    for kind in OriginalVocabulary::ALL {
        if let Ok(converted) = kind.convert(bytes, None) {
            use_tokenizer(&converted.tokenizer_json, converted.tokenizer_config.as_deref());
        }
    }
}

fn use_tokenizer(json: &[u8], config: Option<&[u8]>) {
    let Ok(tokenizer) = Tokenizer::from_tokenizer_json(json, config) else { return };
    let options = EncodeOptions { add_special_tokens: true, parse_special: true };
    if let Ok(ids) = tokenizer.encode(TEXT, options) {
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_size()));
        tokenizer.decode(&ids, false);
        tokenizer.decode(&ids, true);
    }
}
