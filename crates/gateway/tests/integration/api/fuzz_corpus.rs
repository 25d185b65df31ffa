//! Runs the check of the fuzz target on its seeds and on inputs that once failed.

#[path = "../../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/checks/request.rs"]
mod request;

#[test]
fn the_check_passes_on_the_corpus() {
    corpus::replay("request", 4, request::check);
}

/// The seeds are valid bodies, so that fuzzing starts past the first checks.
#[test]
fn seeds_are_accepted() {
    use throng_api::ReadOptions;
    use throng_api::openai::{DetokenizeRequest, TokenizeRequest, chat, completion};
    let seed = |name: &str| std::fs::read(corpus::folder("request").join(name)).unwrap();
    let options = ReadOptions::default();
    chat::parse(&seed("chat.json"), &options).unwrap();
    completion::parse(&seed("completion.json"), &options).unwrap();
    TokenizeRequest::parse(&seed("tokenize.json"), &options).unwrap();
    DetokenizeRequest::parse(&seed("detokenize.json"), &options).unwrap();
}
