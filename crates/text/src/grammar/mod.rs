//! Constraints on outputs: a JSON schema, a regular expression, a grammar. Compiled under limits, cached by
//! content, and evaluated as sets of tokens that may come next. Does not know requests, sampling and the
//! engine.
//!
//! `llguidance` compiles and evaluates; this module limits it, converts unsupported notations (GBNF,
//! structural tags), and turns its mutable parser into a pure function of the output so far.

mod cache;
mod compiler;
mod error;
mod gbnf;
mod intersection;
mod json_schema;
mod lark;
mod lark_terminals;
mod matcher;
mod satisfiable;
mod spec;
mod structural_tag;
mod tool_calls;
mod vocabulary;

pub use cache::{CacheLimits, GrammarCache};
pub use compiler::{CompileLimits, CompiledGrammar, GrammarCompiler};
pub use error::GrammarError;
pub use matcher::GrammarMatcher;
pub use spec::{ConstraintSpec, GrammarKey};
pub use tool_calls::{CallableTool, ToolCallSpec};
