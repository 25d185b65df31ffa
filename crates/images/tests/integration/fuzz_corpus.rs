//! Runs the check of the fuzz target on its seeds and on inputs that once failed.

#[path = "../../../../fuzz/checks/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/checks/image.rs"]
mod image;

#[test]
fn the_check_passes_on_the_corpus() {
    corpus::replay("image", 10, image::check);
}
