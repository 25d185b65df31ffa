//! Batches that are answered in the background: when their lines begin, and how each is answered.

mod gate;
mod lines;
mod runner;

pub(crate) use self::lines::LineAnswers;
pub(crate) use self::runner::answer_batches;
