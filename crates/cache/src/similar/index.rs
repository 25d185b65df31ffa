//! Embeddings of questions with the keys of their answers, found by similarity. Does not know where
//! embeddings come from.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Maximum number of questions that are compared with a new one: each comparison is a product of two vectors,
/// and all are computed under a lock.
const MAX_COMPARED: usize = 1024;

/// Questions by frame, which is the request without the question. Only questions in the same frame can match;
/// the oldest are dropped first. `K` is the type of keys of frames and answers.
#[derive(Debug)]
pub(super) struct Index<K> {
    max_entries: usize,
    frames: HashMap<K, VecDeque<Entry<K>>>,
    /// Frame and number of each question, oldest first, including those that were replaced.
    order: VecDeque<(K, u64)>,
    next: u64,
    n_entries: usize,
}

#[derive(Debug)]
struct Entry<K> {
    number: u64,
    /// Embedding of length one.
    embedding: Box<[f32]>,
    answer: K,
}

impl<K: Clone + Eq + Hash> Index<K> {
    /// Creates an index of at most `max_entries` questions.
    pub fn new(max_entries: usize) -> Self {
        Self { max_entries, frames: HashMap::new(), order: VecDeque::new(), next: 0, n_entries: 0 }
    }

    /// Number of questions.
    pub fn len(&self) -> usize {
        self.n_entries
    }

    /// The answer to the most similar question of `frame` whose answer `is_kept`, with the cosine of the two.
    pub fn nearest(
        &self,
        frame: &K,
        embedding: &[f32],
        mut is_kept: impl FnMut(&K) -> bool,
    ) -> Option<(K, f32)> {
        let entries = self.frames.get(frame)?.iter().filter(|entry| entry.embedding.len() == embedding.len());
        let mut near: Vec<(&K, f32)> =
            entries.map(|entry| (&entry.answer, dot(&entry.embedding, embedding))).collect();
        near.sort_by(|a, b| b.1.total_cmp(&a.1));
        near.into_iter().find(|(answer, _)| is_kept(answer)).map(|(answer, cosine)| (answer.clone(), cosine))
    }

    /// Adds a question, replacing one with the same answer.
    pub fn remember(&mut self, frame: K, embedding: Box<[f32]>, answer: K) {
        let entries = self.frames.entry(frame.clone()).or_default();
        let n_before = entries.len();
        entries.retain(|entry| entry.answer != answer);
        if entries.len() == MAX_COMPARED {
            entries.pop_front();
        }
        let number = self.next;
        entries.push_back(Entry { number, embedding, answer });
        self.n_entries = self.n_entries + entries.len() - n_before;
        self.next += 1;
        self.order.push_back((frame, number));
        while self.n_entries > self.max_entries || self.order.len() > 2 * self.max_entries {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((frame, number)) = self.order.pop_front() else { return };
        let Some(entries) = self.frames.get_mut(&frame) else { return };
        // Entries of a frame stand in the order of their numbers.
        if entries.front().is_some_and(|oldest| oldest.number == number) {
            entries.pop_front();
            self.n_entries -= 1;
        }
        if entries.is_empty() {
            self.frames.remove(&frame);
        }
    }
}

/// The vector divided by its length; `None` for a zero or non-finite one.
pub(super) fn unit(mut vector: Vec<f32>) -> Option<Box<[f32]>> {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if !(length > 0.0 && length.is_finite()) {
        return None;
    }
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    Some(vector.into())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(angle: f32) -> Box<[f32]> {
        unit(vec![angle.cos(), angle.sin()]).expect("a direction")
    }

    #[test]
    fn the_nearest_question_of_the_frame_with_a_kept_answer_is_found() {
        let mut index = Index::new(10);
        for (frame, angle, answer) in [(1, 0.0, 10), (1, 0.5, 11), (1, 0.6, 12), (2, 0.51, 20)] {
            index.remember(frame, vector(angle), answer);
        }
        let (answer, cosine) = index.nearest(&1, &vector(0.52), |_| true).expect("one is near");
        assert_eq!(answer, 11);
        assert!((cosine - 0.02_f32.cos()).abs() < 1e-5);
        assert_eq!(index.nearest(&1, &vector(0.52), |&answer| answer != 11).map(|found| found.0), Some(12));
        assert_eq!(index.nearest(&1, &vector(0.52), |_| false), None);
        assert_eq!(index.nearest(&3, &vector(0.0), |_| true), None);
        let other_model = [1.0, 0.0, 0.0];
        assert_eq!(index.nearest(&1, &other_model, |_| true), None);
        assert_eq!(unit(vec![0.0, 0.0]), None);
        assert_eq!(unit(vec![f32::NAN]), None);
    }

    /// Compares the removal of the oldest questions with a plain list.
    #[test]
    fn the_oldest_questions_go_first() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let max_entries = 20;
        let mut index = Index::new(max_entries);
        let mut list: Vec<(u32, u32)> = Vec::new();
        for _ in 0..5000 {
            let (frame, answer) = (random.u32(0..5), random.u32(0..30));
            index.remember(frame, vector(answer as f32), answer);
            list.retain(|one| *one != (frame, answer));
            list.push((frame, answer));
            if list.len() > max_entries {
                list.remove(0);
            }
            assert!(index.len() <= max_entries && index.order.len() <= 2 * max_entries, "seed {seed}");
            // What was remembered again counts twice until its first place has gone, so that others may go a little early.
            for (frame, entries) in &index.frames {
                let known = |entry: &Entry<u32>| list.contains(&(*frame, entry.answer));
                assert!(!entries.is_empty() && entries.iter().all(known), "seed {seed}");
            }
            let n = index.frames.values().map(VecDeque::len).sum::<usize>();
            assert_eq!(n, index.len(), "seed {seed}");
            assert!(index.nearest(&frame, &vector(answer as f32), |&found| found == answer).is_some());
        }
    }

    #[test]
    fn one_frame_is_compared_within_a_bound() {
        let mut index = Index::new(10 * MAX_COMPARED);
        for answer in 0..2 * MAX_COMPARED {
            index.remember(usize::MAX, vector(0.0), answer);
        }
        assert_eq!(index.len(), MAX_COMPARED);
        assert_eq!(index.nearest(&usize::MAX, &vector(0.0), |&answer| answer < MAX_COMPARED), None);
    }
}
