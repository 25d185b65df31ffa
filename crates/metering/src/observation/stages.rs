//! When a request had passed the stages before its generation, since its head arrived. Does not know what the
//! stages do.

use std::sync::OnceLock;
use std::time::Duration;

/// A stage that a request passes once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its body had arrived.
    Body,
    /// The turn to be parsed and tokenized came.
    Turn,
    /// The prompt was tokenized.
    Tokenized,
}

/// Times at which a request had passed its stages.
#[derive(Debug, Default)]
pub struct Stages {
    body: OnceLock<Duration>,
    turn: OnceLock<Duration>,
    tokenized: OnceLock<Duration>,
}

impl Stages {
    /// Notes that a stage was passed so long after the head's arrival; the first word counts.
    pub fn note(&self, stage: Stage, after: Duration) {
        let _ = self.cell(stage).set(after);
    }

    /// Time at which that stage was passed.
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
