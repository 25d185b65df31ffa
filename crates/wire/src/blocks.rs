//! Requests of one worker to another for KV blocks. Does not know how blocks are found.

use serde::{Deserialize, Serialize};
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::BlockHash;

use crate::frames::LayoutMessage;

/// Maximum number of blocks in a request.
pub const MAX_REQUESTED_BLOCKS: usize = 4096;

/// A worker that is said to have the beginning of a prompt in its cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its address, as `throng://host:port`.
    pub address: String,
    /// Name that its certificate must have; absent: the host of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Number of full blocks of the prompt that it has.
    pub n_blocks: u32,
}

/// Body of a request for blocks: a line of JSON. Blocks of another layout are refused, so that the names are
/// those of one model and one type of keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlocksRequest {
    /// Layout that the blocks must have.
    pub layout: BlockLayout,
    /// Names of the blocks, at most [`MAX_REQUESTED_BLOCKS`], in the order in which they are sent.
    pub names: Vec<BlockHash>,
}

#[derive(Serialize, Deserialize)]
struct RequestMessage {
    layout: LayoutMessage,
    /// Names as hexadecimal digits.
    names: Vec<String>,
}

/// Reason why a request for blocks cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the request for blocks cannot be read: {0}")]
pub struct MalformedBlocksRequest(String);

impl BlocksRequest {
    /// Encodes the request as one line.
    pub fn to_line(&self) -> Vec<u8> {
        let names = self.names.iter().map(hex).collect();
        let message = RequestMessage { layout: self.layout.clone().into(), names };
        // Strings and numbers: nothing can fail.
        let mut line = serde_json::to_vec(&message).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Decodes a request without the end of its line.
    ///
    /// # Errors
    /// When it is malformed, or has too many names.
    pub fn read(line: &[u8]) -> Result<Self, MalformedBlocksRequest> {
        let malformed = |reason: String| MalformedBlocksRequest(reason);
        let message: RequestMessage =
            serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
        if message.names.len() > MAX_REQUESTED_BLOCKS {
            return Err(malformed(format!("{} blocks", message.names.len())));
        }
        let names = message.names.iter().map(|name| unhex(name));
        let names = names.collect::<Option<_>>().ok_or_else(|| malformed("a name is none".into()))?;
        Ok(Self { layout: message.layout.into(), names })
    }
}

fn hex(name: &BlockHash) -> String {
    name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<BlockHash> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut bytes = [0; 32];
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(BlockHash::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back() {
        let layout = BlockLayout {
            model: "m".into(),
            kv_type: "f16".into(),
            name: "l".into(),
            n_bytes: 5,
            n_state_parts: 2,
        };
        let names: Vec<_> = (0..3).map(|i| BlockHash::from_bytes([i * 0x4f; 32])).collect();
        let request = BlocksRequest { layout, names };
        let mut line = request.to_line();
        assert_eq!(line.pop(), Some(b'\n'));
        assert_eq!(BlocksRequest::read(&line), Ok(request.clone()));
        let many = BlocksRequest { names: vec![request.names[0]; MAX_REQUESTED_BLOCKS + 1], ..request };
        assert!(BlocksRequest::read(&many.to_line()).is_err(), "too many");
        let short = String::from_utf8(line).unwrap().replace("4f4f", "4f");
        assert!(BlocksRequest::read(short.as_bytes()).is_err(), "a name of other length");
        assert!(BlocksRequest::read(b"{}").is_err());
    }
}
