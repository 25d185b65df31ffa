//! Contents of images: digests, shapes and features.

use std::sync::Arc;

use throng_core::prompt_media::{ContentError, ContentLayout, FeatureRun, MediaContent, SpanKind};

fn layout(shape: &[u32], runs: &[(u32, u32)]) -> ContentLayout {
    ContentLayout {
        kind: SpanKind::Image,
        grid: [1, 2, 2],
        shape: shape.to_vec(),
        runs: runs.iter().map(|&(offset, len)| FeatureRun { offset, len }).collect(),
    }
}

fn content(shape: &[u32], runs: &[(u32, u32)], pixels: &[f32]) -> Result<MediaContent, ContentError> {
    MediaContent::new(layout(shape, runs), pixels.into())
}

#[test]
fn a_digest_covers_all_that_an_encoder_reads() {
    let one = content(&[2, 2], &[(0, 4)], &[0.0, 1.0, 2.0, 3.0]).expect("valid");
    let video = ContentLayout { kind: SpanKind::Video, ..layout(&[2, 2], &[(0, 4)]) };
    let grid = ContentLayout { grid: [1, 1, 4], ..layout(&[2, 2], &[(0, 4)]) };
    let pixels: Arc<[f32]> = [0.0, 1.0, 2.0, 3.0].into();
    let others = [
        content(&[2, 2], &[(0, 4)], &[0.0, 1.0, 2.0, -3.0]),
        content(&[2, 2], &[(0, 4)], &[-0.0, 1.0, 2.0, 3.0]),
        content(&[4, 1], &[(0, 4)], &[0.0, 1.0, 2.0, 3.0]),
        content(&[4], &[(0, 4)], &[0.0, 1.0, 2.0, 3.0]),
        content(&[2, 2], &[(0, 2), (3, 2)], &[0.0, 1.0, 2.0, 3.0]),
        MediaContent::new(video, pixels.clone()),
        MediaContent::new(grid, pixels.clone()),
    ];
    for other in others {
        assert_ne!(one.digest(), other.expect("valid").digest());
    }
    assert_eq!(one, MediaContent::new(layout(&[2, 2], &[(0, 4)]), pixels).expect("valid"));
}

#[test]
fn what_is_no_content_is_refused() {
    assert_eq!(content(&[2, 2], &[(0, 1)], &[0.0; 3]), Err(ContentError::OtherShape { n_values: 3 }));
    let huge = content(&[u32::MAX; 3], &[(0, 1)], &[0.0; 3]);
    assert_eq!(huge, Err(ContentError::OtherShape { n_values: 3 }));
    assert_eq!(content(&[1], &[(0, 2), (1, 1)], &[0.0]), Err(ContentError::UnorderedRuns));
    assert_eq!(content(&[1], &[(0, 0)], &[0.0]), Err(ContentError::UnorderedRuns));
    assert_eq!(content(&[1], &[(0, 1)], &[f32::NAN]), Err(ContentError::NotFinite));
}

#[test]
fn separators_between_the_tokens_have_no_features() {
    let rows = layout(&[1], &[(0, 2), (3, 2)]);
    let features: Vec<_> = (0..6).map(|offset| rows.feature_at(offset)).collect();
    assert_eq!(features, [Some(0), Some(1), None, Some(2), Some(3), None]);
    assert_eq!((rows.n_features(), rows.n_tokens()), (4, 5));
}
