//! Images of a prompt: their spans, positions and contents.

use std::sync::Arc;

use throng_core::prompt_media::{
    ContentDigest, ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, RotaryPosition, SpanKind,
};

fn span(start: u32, len: u32) -> PromptSpan {
    PromptSpan { start, len, digest: ContentDigest([len as u8; 32]), kind: SpanKind::Image }
}

fn media(spans: &[PromptSpan]) -> PromptMedia {
    PromptMedia { spans: spans.to_vec(), ..PromptMedia::default() }
}

#[test]
fn spans_are_in_order_and_within_the_prompt() {
    let fits = |spans: &[PromptSpan]| media(spans).fits(20);
    assert!(fits(&[]) && fits(&[span(0, 20)]) && fits(&[span(1, 4), span(5, 15)]));
    assert!(!fits(&[span(1, 5), span(5, 2)]) && !fits(&[span(5, 2), span(1, 2)]));
    assert!(!fits(&[span(10, 11)]) && !fits(&[span(3, 0)]) && !fits(&[span(u32::MAX, u32::MAX)]));
    let positions = |n| PromptMedia { positions: vec![RotaryPosition([0; 3]); n], ..PromptMedia::default() };
    assert!(positions(20).fits(20) && !positions(19).fits(20));
}

#[test]
fn positions_go_on_after_the_largest() {
    let text = media(&[span(0, 2)]);
    assert_eq!(text.rotary_position(7), RotaryPosition([7; 3]));
    let positions = [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]].map(RotaryPosition).to_vec();
    let image = PromptMedia { spans: vec![span(1, 4)], positions, contents: vec![] };
    assert_eq!(image.rotary_position(2), RotaryPosition([1, 1, 2]));
    assert_eq!([5, 6].map(|position| image.rotary_position(position)), [3, 4].map(RotaryPosition::of_text));
}

#[test]
fn positions_of_a_grid_count_rows_and_columns() {
    let positions = PromptMedia::grid_positions(9, &[(span(1, 6), [1, 2, 3])]);
    let numbers: Vec<_> = positions.into_iter().map(|position| position.0).collect();
    let image = [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 1], [1, 2, 2], [1, 2, 3]];
    assert_eq!(numbers, [&[[0; 3]], &image[..], &[[4; 3], [5; 3]]].concat());
    let text = PromptMedia::grid_positions(2, &[]);
    assert_eq!(text, [0, 1].map(RotaryPosition::of_text));
}

#[test]
fn a_prompt_is_complete_with_the_contents_of_its_spans() {
    let layout = ContentLayout {
        kind: SpanKind::Image,
        grid: [1, 2, 2],
        shape: vec![1],
        runs: vec![FeatureRun { offset: 0, len: 4 }],
    };
    let content = Arc::new(MediaContent::new(layout, [1.0].into()).expect("valid"));
    let image = |len| PromptSpan { digest: content.digest(), ..span(1, len) };
    let of = |spans: &[PromptSpan]| PromptMedia { contents: vec![content.clone()], ..media(spans) };
    assert!(of(&[image(4)]).is_complete() && of(&[]).is_complete());
    assert!(!of(&[image(3)]).is_complete(), "features behind the span");
    assert!(!of(&[span(1, 4)]).is_complete(), "another content");
    assert!(!media(&[image(4)]).is_complete(), "no content");
}

#[test]
fn a_token_has_at_most_one_span() {
    let two = media(&[span(1, 4), span(5, 2)]);
    let starts: Vec<_> = (0..8).map(|position| two.span_at(position).map(|span| span.start)).collect();
    assert_eq!(starts, [None, Some(1), Some(1), Some(1), Some(1), Some(5), Some(5), None]);
}

#[test]
fn equal_beginnings_are_found() {
    let (one, two) = (media(&[span(1, 4)]), media(&[span(1, 4), span(10, 2)]));
    assert!(one.is_equal_before(&two, 10) && !one.is_equal_before(&two, 11));
    assert!(!one.is_equal_before(&media(&[span(1, 5)]), 2), "an image is seen as a whole");
    let at = |third: u32| PromptMedia {
        positions: [0, 1, third].map(RotaryPosition::of_text).to_vec(),
        ..PromptMedia::default()
    };
    assert!(at(2).is_equal_before(&at(3), 2) && !at(2).is_equal_before(&at(3), 3));
    assert!(!at(2).is_equal_before(&one, 1));
}
