//! Model of the duration of a step, fitted to earlier steps: `ms = a + b · tokens + c · attended positions`.
//! Plans use a safe estimate, predictions of waits a likely one; these differ until a step was long enough to
//! show the cost of a token. Only the size of chunks and the number of drafts may depend on the model, never
//! the result of a request.

mod machine;

use crate::time::Nanos;

/// Number of means, one for each power of two of batch size, so that thousands of decode steps do not
/// outweigh the few long ones.
const N_BUCKETS: usize = 20;

/// Weight of the newest step in its bucket's mean.
const NEWEST_WEIGHT: f64 = 0.2;

/// Minimum number of tokens of a step that shows the cost of a token. A shorter one takes about as long as
/// a step of one token, because reading the weights takes most of it; the differences between such steps
/// are mostly noise, and a line through them would price a long prompt by that noise.
const MIN_TELLING_TOKENS: usize = 16;

/// Assumed cost of a token before that, as a share of a step without tokens; also the cost for a replica that
/// reports nothing ([`StepTime::default`](crate::scheduling::StepTime)).
const USUAL_TOKEN_SHARE: f64 = 0.01;

/// Properties of a step on which its duration depends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepShape {
    /// Number of new tokens.
    pub n_tokens: usize,
    /// Positions that the new tokens attend to, summed over tokens.
    pub n_attended: usize,
}

impl StepShape {
    /// The shape of `n` new tokens at positions `start..start + n` of one sequence.
    pub fn of_sequence(start: usize, n: usize) -> Self {
        Self { n_tokens: n, n_attended: n * start + n * (n + 1) / 2 }
    }

    /// Shape of a step with the work of both.
    pub fn plus(self, other: Self) -> Self {
        Self { n_tokens: self.n_tokens + other.n_tokens, n_attended: self.n_attended + other.n_attended }
    }

    /// Shape of this step without the work of `other`.
    pub fn minus(self, other: Self) -> Self {
        Self { n_tokens: self.n_tokens - other.n_tokens, n_attended: self.n_attended - other.n_attended }
    }

    fn features(self) -> [f64; 3] {
        [1.0, self.n_tokens as f64, self.n_attended as f64]
    }
}

/// The model, fitted again after each step by least squares of relative errors over the buckets' means.
#[derive(Debug, Clone, Default)]
pub struct StepTimeModel {
    buckets: [Option<Bucket>; N_BUCKETS],
    coefficients: Option<[f64; 3]>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    features: [f64; 3],
    ms: f64,
}

impl StepTimeModel {
    /// Updates the model with a step that ran.
    pub fn observe(&mut self, shape: StepShape, duration: Nanos) {
        let (features, ms) = (shape.features(), duration.as_ms_f64().max(1e-3));
        let bucket = &mut self.buckets[(shape.n_tokens.max(1).ilog2() as usize).min(N_BUCKETS - 1)];
        *bucket = Some(match *bucket {
            None => Bucket { features, ms },
            Some(old) => {
                let mix = |old: f64, new: f64| old + NEWEST_WEIGHT * (new - old);
                let features = std::array::from_fn(|i| mix(old.features[i], features[i]));
                Bucket { features, ms: mix(old.ms, ms) }
            }
        });
        self.coefficients = Some(self.fit());
    }

    /// The duration of a step of this shape in ms; `None` before the first observation. Before long steps
    /// were observed, it is too long rather than too short for them.
    pub fn predict_ms(&self, shape: StepShape) -> Option<f64> {
        Some(Self::ms(self.coefficients?, shape))
    }

    /// The expected duration of a step of this shape in ms, also for shapes beyond all observed ones;
    /// `None` before the first observation.
    pub fn likely_ms(&self, shape: StepShape) -> Option<f64> {
        let first_telling = MIN_TELLING_TOKENS.ilog2() as usize;
        let is_told = self.buckets[first_telling..].iter().any(Option::is_some);
        let fitted = self.coefficients?;
        Some(Self::ms(if is_told { fitted } else { self.usual() }, shape))
    }

    fn ms(coefficients: [f64; 3], shape: StepShape) -> f64 {
        coefficients.iter().zip(shape.features()).map(|(c, x)| c * x).sum()
    }

    /// Maximum number of new tokens, at most `n_max`, that a sequence beginning at `start` may add to a
    /// step of shape `before` so that it lasts at most `target_ms`. `None` before the first observation.
    pub fn most_tokens(
        &self,
        before: StepShape,
        start: usize,
        n_max: usize,
        target_ms: f64,
    ) -> Option<usize> {
        self.coefficients?;
        let fits = |n| {
            let shape = before.plus(StepShape::of_sequence(start, n));
            self.predict_ms(shape).is_some_and(|ms| ms <= target_ms)
        };
        let (mut fitting, mut too_many) = (0, n_max + 1);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        Some(fitting)
    }

    /// Coefficients from the mean of the buckets, for a machine on which tokens have the usual cost.
    fn usual(&self) -> [f64; 3] {
        let fixed = |bucket: &Bucket| bucket.ms / (1.0 + USUAL_TOKEN_SHARE * bucket.features[1]);
        let n_buckets = self.buckets.iter().flatten().count().max(1) as f64;
        let fixed = self.buckets.iter().flatten().map(fixed).sum::<f64>() / n_buckets;
        [fixed, USUAL_TOKEN_SHARE * fixed, 0.0]
    }

    /// Least squares with non-negative coefficients: negative ones are removed, the last first.
    fn fit(&self) -> [f64; 3] {
        let mut used = [true; 3];
        loop {
            let solution = self.solve(used);
            match (0..3).rev().find(|&i| solution[i] < 0.0) {
                Some(i) => used[i] = false,
                None => return solution,
            }
        }
    }

    fn solve(&self, used: [bool; 3]) -> [f64; 3] {
        let (mut normal, mut moment) = ([[0.0; 3]; 3], [0.0; 3]);
        for bucket in self.buckets.iter().flatten() {
            let x: [f64; 3] =
                std::array::from_fn(|i| if used[i] { bucket.features[i] / bucket.ms } else { 0.0 });
            for i in 0..3 {
                moment[i] += x[i];
                for j in 0..3 {
                    normal[i][j] += x[i] * x[j];
                }
            }
        }
        // A little more of the diagonal keeps one observation solvable: its cost is shared among the features.
        for (i, row) in normal.iter_mut().enumerate() {
            row[i] = row[i] * (1.0 + 1e-6) + 1e-30;
        }
        solve_symmetric(normal, moment)
    }
}

/// Solves `a x = b` for a positive definite `a` by elimination.
fn solve_symmetric(mut a: [[f64; 3]; 3], mut b: [f64; 3]) -> [f64; 3] {
    for i in 0..3 {
        let pivot = a[i];
        for row in i + 1..3 {
            let factor = a[row][i] / pivot[i];
            for (entry, pivot) in a[row].iter_mut().zip(pivot) {
                *entry -= factor * pivot;
            }
            b[row] -= factor * b[i];
        }
    }
    let mut x = [0.0; 3];
    for i in (0..3).rev() {
        let known: f64 = (i + 1..3).map(|j| a[i][j] * x[j]).sum();
        x[i] = (b[i] - known) / a[i][i];
    }
    x
}
