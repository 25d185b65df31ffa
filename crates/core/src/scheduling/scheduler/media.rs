//! Keeps pictures whole where all of a picture's tokens are computed in one step. Does not plan.

use crate::request::Request;
use crate::scheduling::admission::Admission;
use crate::scheduling::batch::BLOCK_TOKENS;

/// Number of tokens from `start` on, near `n`, that cuts no picture: fewer, up to the beginning of the
/// picture that `n` would cut, or, at the beginning of a picture, all of it, if that is at most `most`.
pub(super) fn without_cut(
    admission: &Admission,
    request: &Request,
    start: usize,
    n: usize,
    most: usize,
) -> usize {
    let media = request.media.as_ref().filter(|_| n > 0 && admission.keeps_media_whole());
    let Some(span) = media.and_then(|media| media.span_cut_at((start + n) as u32)) else { return n };
    if span.start as usize > start {
        return span.start as usize - start;
    }
    let whole = span.end() as usize - start;
    if whole <= most { whole } else { 0 }
}

/// Fewest tokens from `start` on that a step may compute: the whole picture that begins there, or one token.
pub(super) fn least_chunk(admission: &Admission, request: &Request, start: usize) -> usize {
    let media = request.media.as_ref().filter(|_| admission.keeps_media_whole());
    let span = media.and_then(|media| media.span_at(start as u32));
    span.filter(|span| span.start as usize == start).map_or(1, |span| span.len as usize)
}

/// The largest number of leading blocks, up to `n_blocks`, that does not end inside of a picture.
pub(super) fn n_uncut_blocks(admission: &Admission, request: &Request, mut n_blocks: usize) -> usize {
    if let Some(media) = request.media.as_ref().filter(|_| admission.keeps_media_whole()) {
        while let Some(span) = media.span_cut_at((n_blocks * BLOCK_TOKENS) as u32) {
            n_blocks = span.start as usize / BLOCK_TOKENS;
        }
    }
    n_blocks
}
