//! Times at which a request passed the stages before its generation, since the arrival of its head. Does
//! not know the stages.

use std::sync::OnceLock;
use std::time::Duration;

/// A stage that each request passes once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The body of the request has arrived.
    Body,
    /// The request's turn to be parsed and tokenized.
    Turn,
    /// The prompt is tokenized.
    Tokenized,
}

/// Times at which a request passed its stages.
#[derive(Debug, Default)]
pub struct Stages {
    body: OnceLock<Duration>,
    turn: OnceLock<Duration>,
    tokenized: OnceLock<Duration>,
}

impl Stages {
    /// Records that a stage was passed `after` the arrival of the head; only the first call counts.
    pub fn note(&self, stage: Stage, after: Duration) {
        let _ = self.cell(stage).set(after);
    }

    /// Time at which the stage was passed.
    pub fn passed(&self, stage: Stage) -> Option<Duration> {
        self.cell(stage).get().copied()
    }

    fn cell(&self, stage: Stage) -> &OnceLock<Duration> {
        match stage {
            Stage::Body => &self.body,
            Stage::Turn => &self.turn,
            Stage::Tokenized => &self.tokenized,
        }
    }

    /// The stages as entries of a `server-timing` header.
    pub fn server_timing(&self) -> String {
        let at = |stage| self.passed(stage).unwrap_or_default();
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let (body, turn, tokenized) = (at(Stage::Body), at(Stage::Turn), at(Stage::Tokenized));
        format!(
            "read;dur={:.1}, turn;dur={:.1}, tokenize;dur={:.1}",
            ms(Duration::ZERO, body),
            ms(body, turn),
            ms(turn, tokenized)
        )
    }
}
