//! A generation as the body of a response: its events as lines. The request's further lines name the
//! continuations to abort. Dropping the body aborts the generation. Does not submit requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use throng_http::memory::Reservation;
use throng_wire::{Command, Event};

use crate::adapters::LoadedAdapter;
use crate::body_lines::BodyLines;
use crate::replica::{Generation, ReplicaError, ReplicaErrorKind, sent_error, sent_event};

/// Approximate size in bytes up to which simultaneously ready events are sent together.
const CHUNK_BYTES: usize = 16 << 10;

/// The body of a response.
#[derive(Debug)]
pub struct GenerationStream {
    /// Running generation; `None` once it has ended.
    generation: Option<Box<dyn Generation>>,
    /// Further lines of the request; `None` once no more can arrive.
    commands: Option<BodyLines>,
    /// Bytes that the reader has not taken yet.
    chunk: Vec<u8>,
    _held: (Option<LoadedAdapter>, Reservation),
}

impl GenerationStream {
    /// Creates the body for a new generation; `held` is kept until it ends.
    pub(super) fn new(
        generation: Box<dyn Generation>,
        commands: BodyLines,
        held: (Option<LoadedAdapter>, Reservation),
    ) -> Self {
        let chunk = throng_wire::line(&Event::Accepted).unwrap_or_default();
        Self { generation: Some(generation), commands: Some(commands), chunk, _held: held }
    }

    fn follow_commands(&mut self, cx: &mut Context<'_>) {
        while let Some(commands) = &mut self.commands {
            match commands.poll_line(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(line))) => {
                    if let (Ok(Command::Abort { index }), Some(generation)) =
                        (serde_json::from_slice(&line), &mut self.generation)
                    {
                        generation.abort_continuation(index);
                    }
                }
                Poll::Ready(Ok(None) | Err(_)) => self.commands = None,
            }
        }
    }

    fn add(&mut self, event: &Event) {
        match throng_wire::line(event) {
            Ok(line) => self.chunk.extend_from_slice(&line),
            Err(error) => {
                let kind = ReplicaErrorKind::Failed;
                let error = ReplicaError { kind, retryable: false, message: error.to_string() };
                self.chunk.extend_from_slice(&failed(error));
                self.generation = None;
            }
        }
    }
}

impl Stream for GenerationStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.follow_commands(cx);
        while self.chunk.len() < CHUNK_BYTES
            && let Some(generation) = &mut self.generation
        {
            match generation.poll_next_unpin(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(event)) => self.add(&sent_event(event)),
                Poll::Ready(None) => self.generation = None,
            }
        }
        if !self.chunk.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.chunk).into())));
        }
        if self.generation.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// The line with the error of a request that failed or was refused.
pub(super) fn failed(error: ReplicaError) -> Vec<u8> {
    throng_wire::line(&Event::Failed { error: sent_error(error) }).unwrap_or_default()
}
