//! Responses in the API's format for connections without a request. Does not know when they are sent.

use throng_http::RawResponses;

/// The responses of every server.
pub(super) const RAW_RESPONSES: RawResponses =
    RawResponses { too_many_connections: TOO_MANY_CONNECTIONS, not_https: NOT_HTTPS };

const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
retry-after: 1\r\nconnection: close\r\ncontent-length: 126\r\n\r\n\
{\"error\":{\"message\":\"The server has too many connections.\",\"type\":\"server_error\",\
\"param\":null,\"code\":\"too_many_connections\"}}\n";
const NOT_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\
content-length: 142\r\n\r\n{\"error\":{\"message\":\"This server speaks HTTPS: use https:// in its address.\",\
\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"not_https\"}}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_responses_are_well_formed() {
        for response in [TOO_MANY_CONNECTIONS, NOT_HTTPS] {
            let text = std::str::from_utf8(response).expect("ascii");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
            serde_json::from_str::<serde_json::Value>(body).expect("json");
        }
    }
}
