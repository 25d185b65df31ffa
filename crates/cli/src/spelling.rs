//! Finds the known word closest to a mistyped one. Does not know what the words are.

/// The closest of the `known` words; `None` if more than a third of its letters differ. One letter may
/// always differ.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = normalized(word);
    let limit = (plain.chars().count() / 3).max(1);
    let close = known.into_iter().map(|candidate| (distance(&plain, &normalized(candidate)), candidate));
    close
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Lower case with one kind of separator, so that `--max-num-seqs` and `max_num_seqs` are the same word.
fn normalized(word: &str) -> String {
    word.trim_start_matches('-').to_lowercase().replace('-', "_")
}

/// Number of letters to insert, delete, replace or swap with their neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let exchanged = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = exchanged.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_words_are_found_and_others_are_not() {
        let words = ["serve", "chat", "generate", "max_num_seqs", "port", "host"];
        for (typed, meant) in [
            ("serv", Some("serve")),
            ("sevre", Some("serve")),
            ("prot", Some("port")),
            ("--max-num-seq", Some("max_num_seqs")),
            ("Generate", Some("generate")),
            ("list", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(typed, words), meant, "{typed}");
        }
    }
}
