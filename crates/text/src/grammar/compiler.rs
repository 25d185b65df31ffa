//! Compiles constraints for one tokenizer, under limits. Does not know requests.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{ParserFactory, TokenParser};
use serde_json::json;

use super::error::summary;
use super::json_schema::Numbers;
use super::spec::{ConstraintSpec, GrammarKey};
use super::vocabulary::Vocabulary;
use super::{GrammarError, gbnf, json_schema, lark, satisfiable, structural_tag, tool_calls};
use crate::tokenizer::Tokenizer;

/// Stack size of the compiling thread: llguidance recurses over client input, within the limits checked
/// before. Only the used part takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Size of a lexer in bytes above which it is left to the outputs that use it; later outputs get a new one.
const MAX_SHARED_LEXER_BYTES: usize = 8 << 20;

/// Maximum number of alternative continuations at one position of an output.
const MAX_ROW_ITEMS: usize = 8000;

/// Limits on compiling one constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Maximum bytes of a schema, of the texts of a choice, or of a structural tag.
    pub max_json_bytes: usize,
    /// Maximum bytes of a grammar.
    pub max_grammar_bytes: usize,
    /// Maximum bytes of a regular expression.
    pub max_regex_bytes: usize,
    /// Maximum steps of building regular expressions, in llguidance's unit: about 50,000 a millisecond.
    pub fuel: u64,
    /// Maximum steps of one mask, in llguidance's unit: about 14,000 a millisecond.
    pub mask_fuel: u64,
    /// Maximum states of an expression's automaton, 1 to 2 kB each.
    pub max_states: usize,
    /// Maximum symbols in all rules together.
    pub max_symbols: usize,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            max_json_bytes: 256 << 10,
            max_grammar_bytes: 64 << 10,
            max_regex_bytes: 16 << 10,
            fuel: 100_000,
            mask_fuel: 50_000,
            max_states: 20_000,
            max_symbols: 50_000,
        }
    }
}

/// Compiles constraints for one tokenizer. Shared between threads.
pub struct GrammarCompiler {
    factory: ParserFactory,
    limits: CompileLimits,
    n_tokens: usize,
    end_tokens: Vec<u32>,
}

/// A compiled constraint. Outputs under the same constraint share its automaton, which is built on demand.
pub struct CompiledGrammar {
    /// Parser that is never advanced; its automaton is not shared.
    pristine: Mutex<TokenParser>,
    /// Parser that is never advanced; its clones share its automaton.
    shared: Mutex<TokenParser>,
    key: GrammarKey,
    n_source_bytes: usize,
    n_tokens: usize,
    end_tokens: Vec<u32>,
}

impl GrammarCompiler {
    /// Prepares a tokenizer: about 100 ms for 150,000 tokens. `end_tokens` are all tokens that may end an
    /// output.
    ///
    /// # Errors
    /// [`GrammarError::NoEndToken`], or [`GrammarError::Unsupported`] for a vocabulary that cannot be
    /// constrained.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        end_tokens: &[u32],
        limits: CompileLimits,
    ) -> Result<Self, GrammarError> {
        let n_tokens = tokenizer.vocabulary_size();
        let vocabulary: TokEnv = Arc::new(Vocabulary::new(tokenizer, end_tokens)?);
        let end_tokens = vocabulary.tok_trie().eos_tokens().to_vec();
        let can_force = vocabulary.tokenize_is_canonical();
        let abilities = InferenceCapabilities { ff_tokens: can_force, ..InferenceCapabilities::default() };
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&vocabulary, abilities, &slices);
        let mut factory = factory.map_err(|error| GrammarError::Internal(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: limits.fuel,
            step_lexer_fuel: limits.mask_fuel,
            max_lexer_states: limits.max_states,
            max_grammar_size: limits.max_symbols,
            // Otherwise compiling would walk the vocabulary for every large expression.
            precompute_large_lexemes: false,
            max_items_in_row: MAX_ROW_ITEMS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory, limits, n_tokens, end_tokens })
    }

    /// Compiles a constraint in a separate thread. Takes at most about 50 ms and 64 MB.
    ///
    /// # Errors
    /// A description of the fault, or the exceeded limit.
    pub fn compile(&self, spec: &ConstraintSpec) -> Result<Arc<CompiledGrammar>, GrammarError> {
        self.check_size(spec)?;
        let outcome = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, || self.compile_here(spec));
            let thread = thread.map_err(|error| GrammarError::Internal(error.to_string()))?;
            thread.join().map_err(|panic| GrammarError::Internal(panic_text(&*panic)))?
        })?;
        Ok(Arc::new(outcome))
    }

    fn check_size(&self, spec: &ConstraintSpec) -> Result<(), GrammarError> {
        let max_bytes = match spec {
            ConstraintSpec::JsonObject => return Ok(()),
            ConstraintSpec::Regex(_) => self.limits.max_regex_bytes,
            ConstraintSpec::Lark(_) | ConstraintSpec::Gbnf(_) => self.limits.max_grammar_bytes,
            ConstraintSpec::JsonSchema(_)
            | ConstraintSpec::Choice(_)
            | ConstraintSpec::StructuralTag(_)
            | ConstraintSpec::ToolCalls(_) => self.limits.max_json_bytes,
        };
        if spec.n_bytes() > max_bytes {
            return Err(GrammarError::TooComplex(format!("it has more than {max_bytes} bytes")));
        }
        Ok(())
    }

    fn compile_here(&self, spec: &ConstraintSpec) -> Result<CompiledGrammar, GrammarError> {
        let mut numbers = Numbers::default();
        let grammar = match spec {
            ConstraintSpec::JsonObject => {
                TopLevelGrammar::from_json_schema(json_schema::prepare(&json!({ "type": "object" }))?)
            }
            ConstraintSpec::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(numbers.lower(json_schema::prepare(schema)?)?)
            }
            ConstraintSpec::Regex(regex) => TopLevelGrammar::from_lark(lark::of_regex(regex)?),
            ConstraintSpec::Choice(choices) => TopLevelGrammar::from_lark(lark::of_choice(choices)?),
            ConstraintSpec::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
            ConstraintSpec::Lark(text) => {
                lark::check(text)?;
                TopLevelGrammar::from_lark(lark::with_schemas(text, &mut numbers)?)
            }
            ConstraintSpec::StructuralTag(tag) => {
                TopLevelGrammar::from_lark(structural_tag::to_lark(tag, &mut numbers)?)
            }
            ConstraintSpec::ToolCalls(calls) => {
                TopLevelGrammar::from_lark(tool_calls::to_lark(calls, &mut numbers)?)
            }
        };
        let mut parser = self.parser(grammar, &numbers)?;
        satisfiable::check(&mut parser)?;
        parser.start_without_prompt();
        // The first mask finds faults that no single rule shows, such as two expressions that exclude each
        // other.
        let mut first = parser.deep_clone();
        let is_dead = first.compute_mask().is_err() && !first.is_accepting();
        if is_dead {
            let reason = first.error_message().unwrap_or_else(|| "no token may come first".to_owned());
            return Err(match first.stop_reason() {
                llguidance::api::StopReason::NoExtensionBias => GrammarError::Unsatisfiable(reason),
                _ => failure(&reason),
            });
        }
        Ok(CompiledGrammar {
            shared: Mutex::new(parser.deep_clone()),
            pristine: Mutex::new(parser),
            key: spec.key(),
            n_source_bytes: spec.n_bytes(),
            n_tokens: self.n_tokens,
            end_tokens: self.end_tokens.clone(),
        })
    }
}

impl GrammarCompiler {
    fn parser(&self, grammar: TopLevelGrammar, numbers: &Numbers) -> Result<TokenParser, GrammarError> {
        let mut init = GrammarInit::Serialized(grammar);
        if !numbers.is_empty() {
            let vocabulary = Some(self.factory.tok_env().clone());
            let compiled = init.to_internal(vocabulary, self.factory.limits().clone());
            let (grammar, mut lexer) = compiled.map_err(|error| failure(&error.to_string()))?;
            numbers.put_into(&mut lexer)?;
            init = GrammarInit::Internal(grammar, lexer);
        }
        let parser = self.factory.create_parser_from_init_default(init);
        parser.map_err(|error| failure(&error.to_string()))
    }
}

impl CompiledGrammar {
    /// Key of the source constraint.
    pub fn key(&self) -> GrammarKey {
        self.key
    }

    /// Number of token ids; they start at 0.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Tokens that may end an output.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Estimated bytes at present, including the automaton.
    pub fn n_bytes(&self) -> usize {
        let lexer = |parser: &Mutex<TokenParser>| lock(parser).parser.lexer_stats().num_bytes;
        64 * 1024 + 16 * self.n_source_bytes + lexer(&self.pristine) + lexer(&self.shared)
    }

    /// Creates a parser at the start of an output that shares the automaton.
    pub(super) fn begin(&self) -> TokenParser {
        let mut shared = lock(&self.shared);
        let stats = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.parser.lexer_stats()));
        if stats.is_ok_and(|stats| !stats.error && stats.num_bytes <= MAX_SHARED_LEXER_BYTES) {
            return shared.clone();
        }
        *shared = lock(&self.pristine).deep_clone();
        shared.clone()
    }

    /// Creates a parser at the start of an output with an automaton of its own.
    pub(super) fn begin_alone(&self) -> TokenParser {
        lock(&self.pristine).deep_clone()
    }
}

fn lock(parser: &Mutex<TokenParser>) -> std::sync::MutexGuard<'_, TokenParser> {
    parser.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of llguidance.
fn failure(message: &str) -> GrammarError {
    const LIMITS: &[&str] = &[
        "fuel",
        "too large",
        "too many",
        "too big",
        "too complex",
        "level exceeded",
        "limit",
        "out of range",
    ];
    let line = summary(message);
    if let Some((_, keys)) = message.split_once("Unimplemented keys: [\"") {
        let keyword = keys.split('"').next().unwrap_or_default().to_owned();
        return GrammarError::UnsupportedKeyword { keyword, path: "#".to_owned() };
    }
    if message.contains("oneOf constraints are not supported") {
        let reason =
            "'oneOf' is only supported where its options differ in type or in a constant; use 'anyOf'";
        return GrammarError::Unsupported(reason.to_owned());
    }
    if message.contains("retriev") {
        let reason = "a '$ref' to another document is not supported";
        return GrammarError::Unsupported(reason.to_owned());
    }
    if message.contains("circular references") {
        let reason = "a '$ref' to a schema around it, with other keywords beside it, is not supported";
        return GrammarError::Unsupported(reason.to_owned());
    }
    if message.contains("Failed to generate regex") {
        return GrammarError::TooComplex("the range of a number".to_owned());
    }
    if message.contains("not disjoint") || message.contains("are disjoint") {
        let reason = "'patternProperties' is only supported where no name can match two patterns";
        return GrammarError::Unsupported(format!("{reason}: {line}"));
    }
    if message.contains("nsatisfiable") {
        return GrammarError::Unsatisfiable(line);
    }
    let lower = message.to_lowercase();
    if LIMITS.iter().any(|limit| lower.contains(limit)) {
        return GrammarError::TooComplex(line);
    }
    GrammarError::Invalid(line)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").field("key", &self.key).finish_non_exhaustive()
    }
}
