//! Finds a server that runs on this machine. Does not start one.

use super::chat::remote::Server;

/// Where servers are looked for: the default port, and that of Ollama's clients.
const PLACES: [&str; 2] = ["http://127.0.0.1:8000", "http://127.0.0.1:11434"];

/// A server that has the model of this name, or any model where none is named: the one of `url`, else of
/// `THRONG_URL`, else of this machine's usual ports.
pub fn find(url: Option<&str>, key: Option<&str>, model: Option<&str>) -> Option<Server> {
    let named = url.map(str::to_owned).or_else(|| std::env::var("THRONG_URL").ok());
    match named {
        Some(url) => Server::having(&url, key, model),
        None => PLACES.iter().find_map(|place| Server::having(place, key, model)),
    }
}
