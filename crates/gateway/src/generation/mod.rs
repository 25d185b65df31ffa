//! Generation of one request: from a checked body through template, tokenizer and engine to numbered
//! choices of text, complete or streamed. Does not know sockets.

mod admit;
mod answer_bound;
mod answer_stream;
mod client_error;
mod collect;
mod constraining;
mod frames;
mod images;
mod moderating;
mod output;
mod past_calls;
mod prepare;
mod reading;
mod session;
mod shortening;
mod stream;
mod tokenization_queue;
mod work;

pub(crate) use admit::{admit, check_room, count};
pub(crate) use answer_bound::AnswerBound;
pub(crate) use answer_stream::{AnswerSource, AnswerStream, SessionAnswer};
pub(crate) use client_error::{BlamedParams, text_error, unavailable};
pub(crate) use collect::{Collected, collect};
pub(crate) use frames::{AnswerWriting, FrameWriter, Frames};
pub(crate) use images::EncodedMedia;
pub(crate) use output::Output;
pub(crate) use prepare::{PrepareContext, Prepared, encode_conversation, encode_text, prepare, tokenizer_of};
pub(crate) use session::{BegunPrompt, Session};
pub(crate) use stream::{AnswerRecorder, StreamSetting, StreamSource, WrittenAnswer, stream};
pub(crate) use tokenization_queue::TokenizationQueue;
pub(crate) use work::{Abandoned, in_turn, on_blocking_thread, read_and_prepare};
