//! Projectors, some rows at a time. Does not know the source of rows.

use throng_model::backend::{Backend, BackendError, Scratch};

use super::CHUNK_ROWS;
use crate::arrange::Rows;
use crate::weights::Step;

/// A projector's work on the rows of a picture, and its progress.
pub(super) struct ProjectorRun {
    rows: Rows,
    /// The step that is being computed.
    step_idx: usize,
    /// Rows of output so far.
    output: Vec<f32>,
}

impl ProjectorRun {
    pub(super) fn new(rows: Rows) -> Self {
        Self { rows, step_idx: 0, output: Vec::new() }
    }

    /// Computes some rows of a step, of a picture of this height and width in pixels. Returns the number of
    /// multiplications, and the rows once there are no further steps.
    pub(super) fn advance<B: Backend>(
        &mut self,
        backend: &mut B,
        steps: &[Step<B>],
        size: [usize; 2],
    ) -> Result<(usize, Option<Vec<f32>>), BackendError> {
        let Some(step) = steps.get(self.step_idx) else {
            return Ok((0, Some(std::mem::take(&mut self.rows.values))));
        };
        if let Step::Arrange(arrangement, stored) = step {
            let none = Rows { values: Vec::new(), width: 0, shape: self.rows.shape };
            self.rows = arrangement.apply(std::mem::replace(&mut self.rows, none), stored, size);
            self.step_idx += 1;
            return Ok((0, None));
        }
        let (width_in, width) = (self.rows.width, step.width(self.rows.width));
        let first = self.output.len() / width * width_in;
        let part = &self.rows.values[first..self.rows.values.len().min(first + CHUNK_ROWS * width_in)];
        let n_rows = part.len() / width_in;
        self.output.extend_from_slice(&computed(backend, step, part, (width_in, width))?);
        if first + part.len() == self.rows.values.len() {
            (self.rows.values, self.rows.width) = (std::mem::take(&mut self.output), width);
            self.step_idx += 1;
        }
        Ok((n_rows * step.n_weights(width_in), None))
    }
}

/// The rows that a step computes from others.
fn computed<B: Backend>(
    backend: &mut B,
    step: &Step<B>,
    rows: &[f32],
    (width_in, width): (usize, usize),
) -> Result<Vec<f32>, BackendError> {
    let n_rows = rows.len() / width_in;
    let mut input = backend.buffer(n_rows, width_in)?;
    backend.write_rows(&mut input, rows);
    let mut output = backend.buffer(n_rows, width)?;
    backend.set_rows(&mut output, n_rows);
    match step {
        Step::Norm(norm) => backend.norm_rows(&input, norm.get(), &mut output),
        Step::Linear(linear, _) => {
            backend.matmul(&input, &linear.weight, linear.bias.as_ref(), &mut output);
        }
        Step::Activation(activation) => backend.glu(&input, *activation, &mut output),
        Step::GatedMlp(mlp, activation, _) => {
            let mut scratch = Scratch::new(backend, n_rows, width_in, [mlp.width], true)?;
            backend.gated_mlp(&input, None, mlp, *activation, &mut scratch, &mut output);
            backend.all_reduce(&mut output);
        }
        Step::Arrange(..) => {}
    }
    Ok(backend.download(&mut output)?.to_vec())
}

impl<B: Backend> Step<B> {
    /// Number of columns of the output rows, given those of the input rows.
    fn width(&self, width_in: usize) -> usize {
        match self {
            Self::Linear(_, width) | Self::GatedMlp(_, _, width) => *width,
            _ => width_in,
        }
    }

    /// Multiplications a row, given the number of input columns.
    pub(super) fn n_weights(&self, width_in: usize) -> usize {
        match self {
            Self::Linear(_, width) => width_in * width,
            Self::GatedMlp(mlp, _, width) => mlp.width * (2 * width_in + width),
            _ => width_in,
        }
    }
}
