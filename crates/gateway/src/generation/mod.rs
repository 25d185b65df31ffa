//! One request's way: from a checked body through template, tokenizer and engine to numbered choices of text, at
//! once or token by token. Refuses to know sockets.

mod admit;
mod byte_queue;
mod collect;
mod prepare;
mod session;
mod stream;

pub(crate) use admit::{admit, retry_after_s};
pub(crate) use collect::{Answer, Choice, collect};
pub(crate) use prepare::{
    Prepared, encode_conversation, encode_text, off_the_workers, prepare_chat, prepare_completion,
    tokenizer_of,
};
pub(crate) use session::Output;
pub(crate) use stream::{Events, StreamFormat, StreamSetting, stream};
