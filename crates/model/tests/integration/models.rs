//! Tiny models that several tests run.

use throng_testkit::tiny_model::TinyModel;

/// One narrow layer with two heads.
pub fn narrow() -> TinyModel {
    TinyModel { hidden: 64, n_heads: 2, n_kv_heads: 1, feed_forward: 64, ..Default::default() }
}

/// Two layers of middle width.
pub fn two_layers() -> TinyModel {
    TinyModel { n_layers: 2, n_heads: 4, hidden: 128, feed_forward: 128, ..Default::default() }
}
