//! Several steps in flight on a real model: the bits of every request's tokens and log-probabilities are
//! those of one step at a time, where the device chooses the tokens, where the host does, and where both take
//! turns.

use fastrand::Rng;
use throng_core::request::{Request, RequestId, SamplingParams};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::scheduler::{Scheduler, SchedulerConfig, SpeculationMethod, Step};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::runner::RunnerLimits;
use throng_model::{LoadOptions, LoadedModel};
use throng_testkit::answers::Answers;
use throng_testkit::example_backend::ExampleBackend;
use throng_testkit::tiny_model::TinyModel;

const N_REQUESTS: u64 = 24;
const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 24,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 32,
    max_batch_sequences: 6,
    max_sequence_tokens: None,
};

/// The side that chooses the tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chooser {
    Device,
    Host,
    Mixed,
}

fn request(id: u64, rng: &mut Rng, chooser: Chooser) -> Request {
    let on_host = chooser == Chooser::Host || (chooser == Chooser::Mixed && rng.u32(0..6) == 0);
    let mut sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: rng.u32(1..24),
        // Ends now and then before the host expects it.
        eos_token_ids: (0..3).map(|_| rng.u32(0..64)).collect(),
        ..SamplingParams::default()
    };
    if on_host {
        match rng.u32(0..3) {
            0 => sampling.logprobs = Some(2),
            1 => sampling.repetition_penalty = 1.2,
            _ => (sampling.temperature, sampling.seed) = (0.9, id),
        }
    }
    let n_prompt = rng.usize(1..70);
    Request {
        n: rng.u32(1..3),
        ..Request::plain(RequestId(id), (0..n_prompt).map(|_| rng.u32(0..64)).collect::<Vec<_>>(), sampling)
    }
}

/// What all requests get with so many steps in flight, and how many tokens were carried.
fn run(model: &LoadedModel, chooser: Chooser, max_steps_in_flight: u32) -> (Answers, usize) {
    let backend = ExampleBackend::with_steps_in_flight(max_steps_in_flight as usize);
    let mut runner = model.runner_with(backend, &LIMITS).expect("it fits");
    assert_eq!(runner.capacity().max_steps_in_flight, max_steps_in_flight);
    let capacity = runner.capacity();
    let config = SchedulerConfig { speculation: SpeculationMethod::None, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config, capacity);
    let (mut answers, mut n_carried, mut now) = (Answers::default(), 0, Timestamp::default());
    let mut rng = Rng::with_seed(5);
    let mut requests = (0..N_REQUESTS).map(|id| request(id, &mut rng, chooser));
    let mut steps: Vec<Step> = Vec::new();
    loop {
        if let Some(request) = requests.next() {
            scheduler.submit(request, now).expect("it can run");
        }
        while steps.len() < scheduler.max_steps_in_flight()
            && let Some(step) = scheduler.plan(now, &mut |event| answers.note(&event))
        {
            let batch = step.batch();
            n_carried += batch.sequences().iter().filter(|scheduled| scheduled.carried.is_some()).count();
            runner.submit(batch).expect("the device works");
            steps.push(step);
        }
        if steps.is_empty() {
            assert!(scheduler.is_idle(), "nothing runs and something waits");
            return (answers, n_carried);
        }
        let (step, mut output) = (steps.remove(0), StepOutput::default());
        runner.collect(step.batch(), &mut output).expect("the device works");
        now = now + Nanos::from_ms(1);
        scheduler.complete(step, &output, now, &mut |event| answers.note(&event));
    }
}

#[test]
fn several_steps_in_flight_give_the_bits_of_one() {
    let tiny = TinyModel::default().gguf(Format::F32);
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let model = load_bytes("tiny", &tiny, &options, &mut |_| {}).expect("it loads");
    for chooser in [Chooser::Device, Chooser::Host, Chooser::Mixed] {
        let (alone, none) = run(&model, chooser, 1);
        assert_eq!(none, 0);
        for n_steps in [2, 3, 5] {
            let (ahead, n_carried) = run(&model, chooser, n_steps);
            assert!(ahead == alone, "{chooser:?}, {n_steps} steps");
            assert!(n_carried > 50, "{chooser:?}, {n_steps} steps: {n_carried} tokens were carried");
        }
    }
}
