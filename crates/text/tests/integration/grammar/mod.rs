//! Constraints on outputs: what a constrained random model writes satisfies them, whatever is drawn.

mod json_schemas;
mod matching;
mod numbers;
mod texts;
mod vocabularies;
mod walk;
