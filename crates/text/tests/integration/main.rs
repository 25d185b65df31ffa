//! The tests of `throng-text` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod answers;
mod fuzz_corpus;
mod grammar;
mod support;
mod templates;
mod tokenizers;
