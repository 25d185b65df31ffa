//! Messages of gRPC over HTTP/2: one in, one or several out, and the status in the trailers
//! (`PROTOCOL-HTTP2.md` of gRPC). Does not know services.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming;
use prost::Message;

/// The largest message that is read.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// A request must have arrived within this.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// A flag and the length stand before each message.
const PREFIX_BYTES: usize = 5;

/// An answer: frames that cannot fail.
pub(super) type Answer =
    Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, std::convert::Infallible>>>>;

/// A failure, by the numbers of gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    code: u8,
    message: &'static str,
}

impl Status {
    /// The request cannot be understood.
    pub const fn invalid_argument(message: &'static str) -> Self {
        Self { code: 3, message }
    }

    /// There is no such thing.
    pub const fn not_found(message: &'static str) -> Self {
        Self { code: 5, message }
    }

    /// There is no such method.
    pub const fn unimplemented(message: &'static str) -> Self {
        Self { code: 12, message }
    }

    /// Try again later.
    pub const fn unavailable(message: &'static str) -> Self {
        Self { code: 14, message }
    }
}

/// The only message of a request.
pub(super) async fn read<M: Message + Default>(body: Incoming) -> Result<M, Status> {
    let whole = Limited::new(body, MAX_MESSAGE_BYTES + PREFIX_BYTES).collect();
    let whole = tokio::time::timeout(READ_TIMEOUT, whole).await.ok().and_then(Result::ok);
    let bytes =
        whole.ok_or(Status::invalid_argument("the message is too long or did not arrive"))?.to_bytes();
    let Some((prefix, message)) = bytes.split_at_checked(PREFIX_BYTES) else {
        return Err(Status::invalid_argument("a message is missing"));
    };
    if prefix[0] != 0 {
        return Err(Status::unimplemented("compressed messages are not understood"));
    }
    let n_bytes = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if n_bytes as usize != message.len() {
        return Err(Status::invalid_argument("the message has another length than it says"));
    }
    M::decode(message).map_err(|_| Status::invalid_argument("the message cannot be decoded"))
}

/// An answer of one message, or of none and a failure.
pub(super) fn unary(result: Result<impl Message, Status>) -> Answer {
    match result {
        Ok(message) => {
            let frames = [Frame::data(framed(&message)), Frame::trailers(trailers(0, ""))];
            answer(stream::iter(frames.map(Ok)).boxed())
        }
        Err(Status { code, message }) => failed(code, message),
    }
}

/// An answer of messages that come as long as the client listens.
pub(super) fn streaming<M: Message>(
    messages: impl futures_util::Stream<Item = M> + Send + 'static,
) -> Answer {
    answer(messages.map(|message| Ok(Frame::data(framed(&message)))).boxed())
}

/// A failure: no message, and its status.
fn failed(code: u8, message: &'static str) -> Answer {
    answer(stream::iter([Ok(Frame::trailers(trailers(code, message)))]).boxed())
}

fn answer(frames: BoxStream<'static, Result<Frame<Bytes>, std::convert::Infallible>>) -> Answer {
    let mut response = Response::new(StreamBody::new(frames));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

fn trailers(code: u8, message: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    if !message.is_empty() {
        trailers.insert("grpc-message", HeaderValue::from_static(message));
    }
    trailers
}

fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    // A buffer that grows has room for any message.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}
