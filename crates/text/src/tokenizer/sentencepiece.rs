//! Derives the merges of a SentencePiece BPE vocabulary, which contains scores instead. Does not know file
//! formats.

use std::collections::HashMap;

/// The merges implied by `pieces` (`(text, id, score)`), in order of rank: two pieces merge if their
/// concatenation is a piece, the higher score first. Ties are ordered as in transformers' conversion, so
/// that the result equals its `tokenizer.json`.
pub(crate) fn merges_from_scores(pieces: &[(&str, u32, f32)]) -> Vec<(String, String)> {
    struct Candidate<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
        n_left_chars: usize,
        n_right_chars: usize,
    }
    let ids: HashMap<&str, u32> = pieces.iter().map(|&(text, id, _)| (text, id)).collect();
    let mut candidates = Vec::new();
    for &(text, _, score) in pieces {
        let n_chars = text.chars().count();
        let mut of_piece: Vec<((u32, u32), Candidate<'_>)> = Vec::new();
        for (n_left_chars, (cut, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                let n_right_chars = n_chars - n_left_chars;
                let candidate = Candidate { left, right, score, n_left_chars, n_right_chars };
                of_piece.push(((left_id, right_id), candidate));
            }
        }
        of_piece.sort_by_key(|(ids, _)| *ids);
        candidates.extend(of_piece.into_iter().map(|(_, candidate)| candidate));
    }
    candidates.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then(b.n_left_chars.cmp(&a.n_left_chars))
            .then(b.n_right_chars.cmp(&a.n_right_chars))
    });
    candidates.into_iter().map(|merge| (merge.left.to_owned(), merge.right.to_owned())).collect()
}
