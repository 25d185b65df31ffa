//! Binary frames of bounded size in a body that arrives in pieces: KV blocks, beside lines of JSON. Does not
//! know the source and destination of blocks.
//!
//! A frame is the length of what follows as a 32-bit number, a byte for its kind, and its payload. Numbers
//! are little-endian. Kinds: 1, a [`BlockLayout`] as JSON, which the blocks after it have; 2, a block: its
//! name and the name of the prefix before it (32 bytes each), its 16 tokens (32-bit numbers), its bytes; 3,
//! the checksum of all that follows (XXH3, 64 bits), then a block as in kind 2. Frames of other kinds are
//! passed over.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::{BlockHash, BlockTokens};

use xxhash_rust::xxh3::xxh3_64;

use crate::MAX_FRAME_BYTES;

const LAYOUT: u8 = 1;
const BLOCK: u8 = 2;
const CHECKED_BLOCK: u8 = 3;
/// Bytes of a block's frame before the block's bytes: its kind, two names, its tokens.
const BLOCK_HEAD_BYTES: usize = 1 + 2 * 32 + 4 * BLOCK_TOKENS;

/// A binary message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Layout of the following blocks.
    Layout(BlockLayout),
    /// A block of keys and values.
    Block(Box<BlockFrame>),
    /// A block with a checksum, which was right.
    CheckedBlock(Box<BlockFrame>),
    /// A frame of a newer build, which is ignored.
    Unknown,
}

/// A block with the names by which a prefix cache finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFrame {
    /// Name of the block.
    pub hash: BlockHash,
    /// Name of the prefix before the block.
    pub parent: BlockHash,
    /// Tokens of the block.
    pub tokens: BlockTokens,
    /// Keys and values, in the layout that was sent before.
    pub bytes: Vec<u8>,
}

/// Reason why a frame was not written or read. Its connection can no longer be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than it may be.
    #[error("a frame of {n_bytes} bytes, of at most {MAX_FRAME_BYTES}")]
    TooLong {
        /// Length of the frame without its length field.
        n_bytes: usize,
    },
    /// The frame has no kind byte.
    #[error("an empty frame")]
    Empty,
    /// The payload is invalid for its kind.
    #[error("a malformed frame of kind {kind}: {reason}")]
    Malformed {
        /// Kind of the frame.
        kind: u8,
        /// Reason of the refusal.
        reason: String,
    },
}

/// [`BlockLayout`] as JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct LayoutMessage {
    model: Arc<str>,
    kv_type: Arc<str>,
    layout: Arc<str>,
    n_bytes: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    n_state_parts: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl From<BlockLayout> for LayoutMessage {
    fn from(BlockLayout { model, kv_type, name: layout, n_bytes, n_state_parts }: BlockLayout) -> Self {
        Self { model, kv_type, layout, n_bytes, n_state_parts }
    }
}

impl From<LayoutMessage> for BlockLayout {
    fn from(LayoutMessage { model, kv_type, layout: name, n_bytes, n_state_parts }: LayoutMessage) -> Self {
        Self { model, kv_type, name, n_bytes, n_state_parts }
    }
}

impl Frame {
    /// Encodes the frame.
    ///
    /// # Errors
    /// When it would be too long, or is [`Self::Unknown`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = vec![0; 4];
        match self {
            Self::Layout(layout) => {
                let message = LayoutMessage::from(layout.clone());
                frame.push(LAYOUT);
                serde_json::to_writer(&mut frame, &message).map_err(|error| malformed(LAYOUT, error))?;
            }
            Self::Block(block) => {
                frame.push(BLOCK);
                block.write(&mut frame)?;
            }
            Self::CheckedBlock(block) => {
                frame.push(CHECKED_BLOCK);
                frame.extend_from_slice(&[0; 8]);
                let start = frame.len();
                block.write(&mut frame)?;
                let checksum = xxh3_64(&frame[start..]);
                frame[start - 8..start].copy_from_slice(&checksum.to_le_bytes());
            }
            Self::Unknown => return Err(FrameError::Empty),
        }
        let n_bytes = frame.len() - 4;
        match u32::try_from(n_bytes) {
            Ok(length) if n_bytes <= MAX_FRAME_BYTES => frame[..4].copy_from_slice(&length.to_le_bytes()),
            _ => return Err(FrameError::TooLong { n_bytes }),
        }
        Ok(frame)
    }

    /// Decodes a frame without its length field.
    fn read(frame: &[u8]) -> Result<Self, FrameError> {
        let (&kind, payload) = frame.split_first().ok_or(FrameError::Empty)?;
        match kind {
            LAYOUT => {
                let message: LayoutMessage =
                    serde_json::from_slice(payload).map_err(|error| malformed(kind, error))?;
                Ok(Self::Layout(message.into()))
            }
            CHECKED_BLOCK => {
                let too_short = || malformed(kind, "it is too short");
                let (checksum, payload) = payload.split_first_chunk().ok_or_else(too_short)?;
                if xxh3_64(payload) != u64::from_le_bytes(*checksum) {
                    return Err(malformed(kind, "its bytes are damaged"));
                }
                Ok(Self::CheckedBlock(Box::new(read_block(payload).ok_or_else(too_short)?)))
            }
            BLOCK => {
                let block = read_block(payload).ok_or_else(|| malformed(kind, "it is too short"))?;
                Ok(Self::Block(Box::new(block)))
            }
            _ => Ok(Self::Unknown),
        }
    }
}

impl BlockFrame {
    /// Appends the block in its form within a frame.
    fn write(&self, frame: &mut Vec<u8>) -> Result<(), FrameError> {
        let n_bytes = BLOCK_HEAD_BYTES + self.bytes.len();
        if n_bytes > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong { n_bytes });
        }
        frame.reserve_exact(n_bytes);
        frame.extend_from_slice(self.hash.as_bytes());
        frame.extend_from_slice(self.parent.as_bytes());
        self.tokens.iter().for_each(|token| frame.extend_from_slice(&token.to_le_bytes()));
        frame.extend_from_slice(&self.bytes);
        Ok(())
    }
}

fn read_block(payload: &[u8]) -> Option<BlockFrame> {
    let (hash, rest) = payload.split_first_chunk()?;
    let (parent, rest) = rest.split_first_chunk()?;
    let (tokens, bytes) = rest.split_first_chunk::<{ 4 * BLOCK_TOKENS }>()?;
    let mut block = BlockFrame {
        hash: BlockHash::from_bytes(*hash),
        parent: BlockHash::from_bytes(*parent),
        tokens: [0; BLOCK_TOKENS],
        bytes: bytes.to_vec(),
    };
    for (token, bytes) in block.tokens.iter_mut().zip(tokens.as_chunks().0) {
        *token = u32::from_le_bytes(*bytes);
    }
    Some(block)
}

fn malformed(kind: u8, reason: impl ToString) -> FrameError {
    FrameError::Malformed { kind, reason: reason.to_string() }
}

/// Buffer of received bytes that are not decoded into frames yet.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Start of the first frame that was not taken.
    start: usize,
}

impl FrameBuffer {
    /// Adds a piece of the body. All complete frames must be taken before the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// Takes the next complete frame.
    ///
    /// # Errors
    /// When it is malformed, or its length field exceeds the maximum.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, rest)) = self.bytes[self.start..].split_first_chunk() else { return Ok(None) };
        let n_bytes = u32::from_le_bytes(*length) as usize;
        if n_bytes > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong { n_bytes });
        }
        let Some(frame) = rest.get(..n_bytes) else { return Ok(None) };
        let frame = Frame::read(frame)?;
        self.start += 4 + n_bytes;
        Ok(Some(frame))
    }

    /// Whether the buffer ends inside a frame.
    pub fn is_inside_frame(&self) -> bool {
        self.start < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let layout = BlockLayout {
            model: "m".into(),
            kv_type: "f16".into(),
            name: "panels-1".into(),
            n_bytes: 5,
            n_state_parts: 3,
        };
        let hash = BlockHash::from_bytes([1; 32]);
        let block = |bytes: &[u8]| BlockFrame {
            hash: hash.child(&[7; BLOCK_TOKENS]),
            parent: hash,
            tokens: [7; BLOCK_TOKENS],
            bytes: bytes.to_vec(),
        };
        vec![Frame::Layout(layout), Frame::Block(block(b"hello").into()), Frame::Block(block(b"").into())]
    }

    #[test]
    fn frames_do_not_depend_on_the_pieces() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let all: Vec<u8> = frames().iter().flat_map(|frame| frame.to_bytes().expect("short")).collect();
        for _ in 0..200 {
            let (mut buffer, mut read, mut rest) = (FrameBuffer::default(), Vec::new(), &all[..]);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(fastrand::usize(1..=rest.len().min(99)));
                rest = after;
                buffer.push(piece);
                while let Some(frame) = buffer.next_frame().expect("well formed") {
                    read.push(frame);
                }
            }
            assert_eq!(read, frames());
            assert!(!buffer.is_inside_frame());
        }
    }

    #[test]
    fn a_damaged_block_is_found() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let Frame::Block(block) = frames().remove(1) else { panic!("the second is a block") };
        let sent = Frame::CheckedBlock(block);
        let bytes = sent.to_bytes().expect("short");
        let read = |bytes: &[u8]| {
            let mut buffer = FrameBuffer::default();
            buffer.push(bytes);
            buffer.next_frame()
        };
        assert_eq!(read(&bytes), Ok(Some(sent.clone())));
        for _ in 0..1_000 {
            let mut damaged = bytes.clone();
            damaged[fastrand::usize(4..bytes.len())] ^= 1 << fastrand::u32(..8);
            let is_checked = |frame: &Frame| matches!(frame, Frame::CheckedBlock(_));
            assert!(!read(&damaged).is_ok_and(|frame| frame.as_ref().is_some_and(is_checked)));
        }
    }

    #[test]
    fn frames_that_cannot_be_read_say_why() {
        let read = |bytes: &[u8]| {
            let mut buffer = FrameBuffer::default();
            buffer.push(bytes);
            buffer.next_frame()
        };
        let too_long = MAX_FRAME_BYTES + 1;
        assert_eq!(
            read(&(too_long as u32).to_le_bytes()),
            Err(FrameError::TooLong { n_bytes: too_long }),
            "before its payload comes"
        );
        assert_eq!(read(&[0; 4]), Err(FrameError::Empty));
        assert!(matches!(read(&[2, 0, 0, 0, LAYOUT, b'{']), Err(FrameError::Malformed { kind: LAYOUT, .. })));
        let mut short = frames()[2].to_bytes().expect("short");
        short.pop();
        short[..4].copy_from_slice(&(BLOCK_HEAD_BYTES as u32 - 1).to_le_bytes());
        assert!(matches!(read(&short), Err(FrameError::Malformed { kind: BLOCK, .. })));
        assert_eq!(read(&[1, 0, 0, 0, 99]), Ok(Some(Frame::Unknown)));
        assert_eq!(read(&[1, 0, 0]), Ok(None));
        assert_eq!(Frame::Unknown.to_bytes(), Err(FrameError::Empty));
        let Frame::Block(mut block) = frames().remove(1) else { panic!("the second is a block") };
        block.bytes = vec![0; MAX_FRAME_BYTES];
        let n_bytes = MAX_FRAME_BYTES + BLOCK_HEAD_BYTES;
        assert_eq!(Frame::Block(block).to_bytes(), Err(FrameError::TooLong { n_bytes }));
    }
}
