//! The tests of `throng-engine` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod attacks;
mod cancels;
mod chaos;
mod drafts;
mod failures;
mod gate;
mod masks;
mod replay;
mod serving;
mod shutdown;
mod simulation;
mod slow_readers;
mod store;
mod travel;
