//! Recorded loads: as the load of a plan (`--day`), and as the page of a plan for the machine that recorded
//! (`/plan`).

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use throng_core::engine::recording::Event;
use throng_gateway::MakePlanPage;
use throng_plan::autoscale::load_of;
use throng_plan::cost::Calibration;
use throng_plan::cost::calibration::StepSample;
use throng_plan::fleet::{Layout, Setup};
use throng_plan::replica::{Batching, Targets};
use throng_plan::search::{Goal, Question};
use throng_plan::{ModelShape, Parallelism};
use throng_sim::cost::StepShape;
use throng_sim::recording::RecordingReader;
use throng_sim::workload::TimedRequest;
use throng_sim::workload::trace::read_all;

use super::view::{FleetView, PlanView};
use super::{curve, page, refusals, shape_of, this_machine};
use crate::args::PlanArgs;
use crate::commands::replay;
use crate::running::RunningModel;

/// Latest steps of a recording that durations are fitted to.
const MAX_STEPS: usize = 20_000;

/// A recording that is being written, and the model of the recorded engine.
struct RecordedServer {
    path: PathBuf,
    model: ModelShape,
    /// Bytes of the weights, and of keys and values.
    memory_bytes: u64,
    max_sequences: u32,
    max_batch_tokens: u32,
}

/// The arguments with the load of `--day`, and its requests.
///
/// # Errors
/// When the file cannot be read or has no requests.
pub fn recorded_load(arguments: &PlanArgs) -> Result<(PlanArgs, Option<Arc<[TimedRequest]>>)> {
    let mut with_load = arguments.clone();
    let Some(path) = with_load.load.day.take() else { return Ok((with_load, None)) };
    let place = || format!("--day {}", path.display());
    let requests = read_all(&mut *replay::load_of(&path)?).with_context(place)?;
    let load = load_of(&requests).with_context(place)?;
    let described = &mut with_load.load;
    described.rate = Some(load.requests_per_s);
    (described.prompt_tokens, described.output_tokens) = (load.prompt.mean, load.output.mean);
    (described.most_prompt_tokens, described.most_output_tokens) = (load.prompt.most, load.output.most);
    described.variation = load.prompt.variation.max(load.output.variation);
    Ok((with_load, Some(requests.into())))
}

/// Creates the page of a running model that records into this file.
pub fn page_maker(path: &Path, running: &RunningModel) -> Arc<MakePlanPage> {
    let capacity = running.engine.capacity();
    let mut model = shape_of(&running.model);
    model.name.clone_from(&running.names[0]);
    let server = RecordedServer {
        path: path.to_owned(),
        memory_bytes: model.weight_bytes() as u64 + running.kv_bytes,
        model,
        max_sequences: capacity.max_batch_sequences,
        max_batch_tokens: capacity.max_batch_tokens,
    };
    Arc::new(move || server.page().map_err(|error| format!("There is no plan yet: {error:#}.")))
}

impl RecordedServer {
    fn page(&self) -> Result<String> {
        let requests = read_all(&mut *replay::load_of(&self.path)?)?;
        let load = load_of(&requests)?;
        let last_s = requests.last().map_or(0.0, |last| last.at.as_ns() as f64 * 1e-9);
        let measured = Calibration::fit("this server", &self.steps()?)?;
        let batching = Batching {
            max_sequences: self.max_sequences.min(measured.sequences.high as u32),
            max_batch_tokens: self.max_batch_tokens.min(measured.tokens.high as u32),
            speculation: None,
        };
        let setups = [Setup {
            machine: this_machine(Some(self.memory_bytes)),
            model: self.model.clone(),
            parallelism: Parallelism::NONE,
            batching,
            layout: Layout::Together,
            memory_share: 1.0,
            step_overhead_s: 0.0,
            efficiency: None,
            measured: Some(Arc::new(measured)),
        }];
        let targets = Targets::default();
        let question = Question { load, targets, n_spare: 0, n_replicas: None, goal: Goal::Smallest };
        let answers = question.answer(&setups)?;
        let view = |(idx, plan): &(usize, _)| {
            FleetView::new(plan, String::new(), &load, curve(&setups[*idx], plan, &load))
        };
        let fleets = answers.plans.iter().map(view).collect();
        let note = format!(
            "From the recording of this server: {} requests in {:.1} hours, at the rate of the busiest five minutes; durations of \
             steps as they were here.",
            requests.len(),
            last_s / 3600.0
        );
        let refused = refusals(&answers, &setups);
        page::page(&PlanView::new(&self.model, &question, (fleets, refused), vec![note]))
    }

    /// The latest steps of the recording.
    fn steps(&self) -> Result<Vec<StepSample>> {
        let place = || format!("{}", self.path.display());
        let file = File::open(&self.path).with_context(place)?;
        let mut reader = RecordingReader::open(BufReader::new(file)).with_context(place)?;
        let mut steps = std::collections::VecDeque::new();
        while let Some(line) = reader.next_line().with_context(place)? {
            let Event::Step(step) = line.event else { continue };
            if step.failed || step.n_tokens == 0 || step.duration_ns == 0 {
                continue;
            }
            if steps.len() == MAX_STEPS {
                steps.pop_front();
            }
            let shape = StepShape {
                n_sequences: step.n_sequences,
                n_tokens: step.n_tokens,
                n_logits: step.n_sampled,
                n_attention_pairs: step.n_attended,
                ..StepShape::default()
            };
            steps.push_back(StepSample { shape, seconds: step.duration_ns as f64 * 1e-9 });
        }
        Ok(steps.into())
    }
}
