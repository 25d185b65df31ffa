//! The tests of `throng-checkpoint` as one program, which is linked once.

mod checkpoint_formats;
mod fuzz_corpus;
mod robust;
mod weights;
