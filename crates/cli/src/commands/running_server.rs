//! Finds a server that runs on this machine. Does not start one.

use super::chat::remote::Server;

/// Addresses where a server may run: the default port, and the port of Ollama's clients.
const PLACES: [&str; 2] = ["http://127.0.0.1:8000", "http://127.0.0.1:11434"];

/// A server that has `model`, or any model if that is `None`. Looks at `url`, else at `THRONG_URL`, else at
/// this machine's usual ports.
pub fn find(url: Option<&str>, key: Option<&str>, model: Option<&str>) -> Option<Server> {
    let named = url.map(str::to_owned).or_else(|| std::env::var("THRONG_URL").ok());
    match named {
        Some(url) => Server::having(&url, key, model),
        None => PLACES.iter().find_map(|place| Server::having(place, key, model)),
    }
}
