//! The tests of `throng-images` as one program, which is linked once.

mod decoding;
mod fuzz_corpus;
mod mutated;
mod processors;
mod support;
