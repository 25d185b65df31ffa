//! Grammars as constraints of the engine: compiles a request's constraint, and answers which tokens may
//! come next. Does not know parameter names and the engine's threads.

mod after_reasoning;
mod source;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use throng_core::constraint::{ConstraintError, ConstraintIdentity, TokenConstraint, TokenMask};
use throng_core::request::TokenId;
use throng_text::Tokenizer;
use throng_text::grammar::{
    CacheLimits, CompileLimits, CompiledGrammar, ConstraintSpec, GrammarCache, GrammarCompiler, GrammarError,
    GrammarMatcher,
};

pub use after_reasoning::ReasoningTokens;
pub use source::{ConstraintSource, OutputForm, ReasoningBefore};

/// The grammars of one model. Nothing is prepared before the first request with a constraint.
#[derive(Debug)]
pub struct ModelGrammars {
    tokenizer: Arc<Tokenizer>,
    end_tokens: Vec<TokenId>,
    cache: OnceLock<Result<GrammarCache, GrammarError>>,
}

/// The grammar for the outputs of one request.
#[derive(Debug)]
pub struct GrammarConstraint {
    matcher: GrammarMatcher,
    /// Identity of the source.
    identity: Option<ConstraintIdentity>,
    /// Buffer of the last mask, reused for the next one.
    words: Mutex<Vec<u32>>,
}

impl ModelGrammars {
    /// The grammars of a model with these end tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, end_tokens: Vec<TokenId>) -> Self {
        Self { tokenizer, end_tokens, cache: OnceLock::new() }
    }

    /// Compiles the constraint of a request with `n` continuations, or takes it from the cache. Takes up to
    /// about 50 ms, and for the first constraint of a 150,000-token vocabulary another 500 ms, so it must
    /// not run on a thread that serves other requests.
    ///
    /// # Errors
    /// When the constraint cannot be enforced.
    pub fn constraint(
        &self,
        spec: &ConstraintSpec,
        n: u32,
    ) -> Result<Arc<dyn TokenConstraint>, GrammarError> {
        let mut constraint = GrammarConstraint::new(self.grammar(spec)?, n);
        let mut digest = Sha256::new_with_prefix(b"throng grammar");
        spec.write_content(|bytes| digest.update(bytes));
        constraint.identity = Some(ConstraintIdentity(digest.finalize().into()));
        Ok(Arc::new(constraint))
    }

    fn grammar(&self, spec: &ConstraintSpec) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let cache = self.cache.get_or_init(|| {
            let compiler =
                GrammarCompiler::new(self.tokenizer.clone(), &self.end_tokens, CompileLimits::default())?;
            Ok(GrammarCache::new(compiler, CacheLimits::default()))
        });
        cache.as_ref().map_err(GrammarError::clone)?.get(spec)
    }
}

impl GrammarConstraint {
    /// Creates the constraint of a request with `n` continuations.
    pub fn new(grammar: Arc<CompiledGrammar>, n: u32) -> Self {
        Self { matcher: GrammarMatcher::new(grammar, n as usize), identity: None, words: Mutex::default() }
    }
}

impl TokenConstraint for GrammarConstraint {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        let kept = || self.words.lock().unwrap_or_else(PoisonError::into_inner);
        // A concurrent caller gets a buffer of its own.
        let mut words = std::mem::take(&mut *kept());
        words.resize(self.matcher.grammar().n_tokens().div_ceil(32), 0);
        self.matcher.mask(output, &mut words).map_err(|error| {
            // Reasoning before an answer does not match the answer's grammar, which is not an error.
            if !matches!(error, GrammarError::Mismatch(_)) {
                tracing::warn!(%error, n_tokens = output.len(), "a constrained output cannot go on");
            }
            match error {
                GrammarError::Mismatch(_) => ConstraintError::OutputRejected,
                GrammarError::TooComplex(_) => ConstraintError::LimitExceeded,
                _ => ConstraintError::Failed,
            }
        })?;
        mask.set_words(&words);
        *kept() = words;
        Ok(())
    }

    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        if self.matcher.forced(output, forced).is_err() {
            // The mask will report the reason.
            forced.clear();
        }
    }

    fn identity(&self) -> Option<ConstraintIdentity> {
        self.identity
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use throng_text::EncodeOptions;

    use super::*;
    use throng_api::ApiError;

    /// Grammars of a tokenizer with single bytes and an end token.
    fn grammars() -> ModelGrammars {
        let letters = (0x21..=0x7e_u8).map(|byte| (char::from(byte).to_string(), Value::from(byte - 0x21)));
        let json = json!({
            "version": "1.0",
            "added_tokens": [{"id": 94, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": letters.collect::<serde_json::Map<String, Value>>(), "merges": []},
        });
        let tokenizer =
            Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None).expect("a tokenizer");
        ModelGrammars::new(Arc::new(tokenizer), vec![94])
    }

    #[test]
    fn a_constraint_masks_a_vocabulary_of_any_size() {
        let grammars = grammars();
        let spec = ConstraintSpec::Regex("ab[cd]".to_owned());
        let constraint = grammars.constraint(&spec, 2).expect("valid");
        let options = EncodeOptions { add_special_tokens: false, parse_special: false };
        let output = grammars.tokenizer.encode("abc", options).expect("letters");
        for size in [95, 100, 160] {
            let allowed = |n: usize| {
                let mut mask = TokenMask::new(size);
                constraint.mask(&output[..n], &mut mask).expect("an output of the grammar");
                mask.tokens().collect::<Vec<_>>()
            };
            assert_eq!(allowed(0), [output[0]]);
            assert_eq!(allowed(2), [output[2], output[2] + 1]);
            assert_eq!(allowed(3), [94]);
        }
        let mut mask = TokenMask::new(95);
        assert_eq!(constraint.mask(&[94 - 1], &mut mask), Err(ConstraintError::OutputRejected));
        let mut forced = Vec::new();
        constraint.forced(&[93], &mut forced);
        assert!(forced.is_empty());
    }

    #[test]
    fn what_cannot_be_enforced_is_a_400_with_a_code_of_its_kind() {
        let grammars = grammars();
        for (spec, code) in [
            (ConstraintSpec::Regex("(".to_owned()), "invalid_regex"),
            (ConstraintSpec::Regex("((((a{1,999}){1,999}".repeat(2000)), "regex_too_complex"),
            (ConstraintSpec::JsonSchema(json!({"not": {"const": 1}})), "unsupported_json_schema"),
            (ConstraintSpec::JsonSchema(json!(false)), "invalid_json_schema"),
            (ConstraintSpec::JsonSchema(json!({"minItems": 1e18})), "schema_too_complex"),
            (ConstraintSpec::Gbnf("root ::= x".to_owned()), "invalid_grammar"),
            (ConstraintSpec::StructuralTag(json!({})), "invalid_structural_tag"),
        ] {
            let error = grammars.constraint(&spec, 1).expect_err(code);
            let error = ApiError::refused_constraint("guided_regex", &spec, &error);
            assert_eq!((error.status().as_u16(), error.code()), (400, code), "{error}");
            assert_eq!(error.param(), Some("guided_regex"));
        }
        let endless = ModelGrammars::new(grammars.tokenizer.clone(), Vec::new());
        let error = endless.constraint(&ConstraintSpec::JsonObject, 1).expect_err("no end token");
        assert!(matches!(error, GrammarError::NoEndToken), "{error}");
    }
}
