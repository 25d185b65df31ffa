//! What can go wrong: at the start, on the way in, on the way out. Refuses to know HTTP statuses.

use throng_core::admission::Refusal;
use throng_core::batch::RowError;
use throng_core::executor::ExecutorError;
use throng_core::request::TokenId;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no executor.
    #[error("the executor could not be made: {0}")]
    Executor(#[from] ExecutorError),
    /// Making the executor panicked.
    #[error("making the executor panicked: {0}")]
    ExecutorPanicked(String),
    /// The operating system gave no thread.
    #[error("no thread could be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a request was not taken in. Said at once, without waiting for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A request has a prompt of at least one token and at least one continuation.
    #[error("the request has no prompt or asks for no continuation")]
    Empty,
    /// A prompt token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary_size} tokens")]
    InvalidToken {
        /// The token.
        token: TokenId,
        /// Token ids are below this.
        vocabulary_size: u32,
    },
    /// The prompt leaves no room for an output token.
    #[error("the prompt needs {n_tokens} tokens of context, the limit is {limit}")]
    TooLong {
        /// Prompt tokens, and one for the output if any is asked for.
        n_tokens: usize,
        /// Most tokens of a sequence.
        limit: usize,
    },
    /// The KV cache is too small for the prompt, whoever else leaves.
    #[error("the prompt needs {needed_blocks} KV blocks, there are {n_blocks}")]
    NeverFits {
        /// Blocks the prompt and one output token need.
        needed_blocks: usize,
        /// Blocks there are.
        n_blocks: usize,
    },
    /// Too much waits already; later there may be room.
    #[error("the queue is full: {n_requests} requests, {n_tokens} prompt tokens")]
    QueueFull {
        /// Requests that wait.
        n_requests: usize,
        /// Their prompt tokens.
        n_tokens: usize,
    },
    /// The engine finishes what it has and takes nothing new.
    #[error("the engine is shutting down")]
    Draining,
    /// The engine has no executor and could not get another.
    #[error("the engine is not healthy")]
    Unhealthy,
}

impl From<Refusal> for SubmitError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Empty => Self::Empty,
            Refusal::InvalidToken { token, vocabulary_size } => Self::InvalidToken { token, vocabulary_size },
            Refusal::TooLong { n_tokens, limit } => Self::TooLong { n_tokens, limit },
            Refusal::NeverFits { needed_blocks, n_blocks } => Self::NeverFits { needed_blocks, n_blocks },
            Refusal::QueueFull { n_requests, n_tokens } => Self::QueueFull { n_requests, n_tokens },
        }
    }
}

/// Why a request that was taken in has no (more) result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineFailure {
    /// The step that computed it took too long and was given up.
    #[error("a step took longer than {timeout_ms} ms and was given up")]
    StepTimedOut {
        /// The limit.
        timeout_ms: u64,
    },
    /// The step that computed it panicked.
    #[error("a step failed unexpectedly")]
    StepPanicked,
    /// The executor could not run the step that computed it.
    #[error("a step failed: {0}")]
    StepFailed(ExecutorError),
    /// Its own row of a step failed.
    #[error("{0}")]
    RowFailed(#[from] RowError),
    /// Its reader was too far behind.
    #[error("the reader was {n_events} events behind")]
    SlowReader {
        /// Events that waited.
        n_events: usize,
    },
    /// Its id is that of another request that is still alive.
    #[error("the request id is in use")]
    DuplicateId,
    /// The engine could not get another executor.
    #[error("the engine is not healthy")]
    Unhealthy,
    /// The engine stopped before the request was done.
    #[error("the engine has stopped")]
    Stopped,
}
