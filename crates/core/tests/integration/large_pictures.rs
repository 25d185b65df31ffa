//! Large pictures beside text: under a virtual clock, on a machine whose steps take a fixed time, a time for
//! each token and one for each part of the work on pictures.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_core::prompt_media::{ContentDigest, PromptMedia, PromptSpan, SpanKind};
use throng_core::request::{Request, RequestId, SamplingParams};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::PaperExecutor;

const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 4096,
    max_batch_tokens: 512,
    max_batch_sequences: 64,
    max_sequence_tokens: 8192,
    vocabulary_size: 1000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: true,
    keeps_media_whole: false,
    n_stages: 1,
};

const STEP_MS: f64 = 5.0;
const TOKEN_MS: f64 = 0.2;
const PART_MS: f64 = 1.0;
/// Tokens of a picture, and so many parts of the work on it.
const N_PARTS: u32 = 1024;

struct World {
    scheduler: Scheduler,
    executor: PaperExecutor,
    now: Timestamp,
    n_requests: u64,
    /// Duration of each step that had output tokens of text, in ms.
    text_steps_ms: Vec<f64>,
    /// Steps until the prompt of a request was computed.
    prompt_steps: BTreeMap<RequestId, usize>,
    n_steps: usize,
}

impl World {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(SchedulerConfig::default(), CAPACITY),
            executor: PaperExecutor::new(CAPACITY),
            now: Timestamp::default(),
            n_requests: 0,
            text_steps_ms: Vec::new(),
            prompt_steps: BTreeMap::new(),
            n_steps: 0,
        }
    }

    fn submit(&mut self, picture: Option<u8>, max_tokens: u32) -> RequestId {
        let id = RequestId(self.n_requests);
        self.n_requests += 1;
        let n_prompt = if picture.is_some() { N_PARTS as usize + 20 } else { 20 };
        let spans = picture.map(|picture| PromptSpan {
            start: 10,
            len: N_PARTS,
            digest: ContentDigest([picture; 32]),
            kind: SpanKind::Image,
        });
        let media = PromptMedia { spans: spans.into_iter().collect(), ..PromptMedia::default() };
        let sampling = SamplingParams { max_tokens, ignore_eos: true, ..Default::default() };
        let prompt = vec![id.0 as u32; n_prompt];
        let media = picture.map(|_| Arc::new(media));
        let request = Request { media, ..Request::plain(id, prompt, sampling) };
        self.scheduler.submit(request, self.now).expect("there is room");
        id
    }

    /// Runs a step; false where there is nothing to do.
    fn step(&mut self) -> bool {
        let Some(step) = self.scheduler.plan(self.now, &mut |_| {}) else { return false };
        let mut output = StepOutput::default();
        let batch = Arc::clone(step.batch());
        self.executor.execute(&batch, &mut output).expect("paper does not fail");
        let n_parts: u32 =
            batch.encodings().iter().map(|encoding| encoding.share.done - encoding.n_before).sum();
        let encoding_ms = PART_MS * f64::from(n_parts);
        output.media.n_parts = n_parts;
        output.media.took = Nanos((encoding_ms * 1e6) as u64);
        let took_ms = STEP_MS + TOKEN_MS * batch.n_tokens() as f64 + encoding_ms;
        let is_text = |scheduled: &throng_core::scheduling::batch::ScheduledSequence| {
            scheduled.media.is_none() && scheduled.sample && scheduled.start >= scheduled.n_prompt
        };
        if batch.sequences().iter().any(is_text) {
            self.text_steps_ms.push(took_ms);
        }
        drop(batch);
        self.now = self.now + Nanos((took_ms * 1e6) as u64);
        self.n_steps += 1;
        let (prompt_steps, n_steps) = (&mut self.prompt_steps, self.n_steps);
        self.scheduler.complete(step, &output, self.now, &mut |event| {
            if let Event::PromptDone { request, .. } = event {
                prompt_steps.insert(request, n_steps);
            }
        });
        true
    }
}

#[test]
fn a_large_picture_lengthens_no_step_of_text_beyond_the_target() {
    let mut world = World::new();
    for _ in 0..8 {
        world.submit(None, 600);
    }
    for _ in 0..40 {
        assert!(world.step());
    }
    world.text_steps_ms.clear();
    let pictures: Vec<RequestId> = (1..=4).map(|picture| world.submit(Some(picture), 4)).collect();
    while pictures.iter().any(|id| !world.prompt_steps.contains_key(id)) {
        assert!(world.step(), "the pictures wait for nothing");
    }
    let target_ms = f64::from(SchedulerConfig::default().inter_token_target_ms);
    let longest_ms = world.text_steps_ms.iter().copied().fold(0.0, f64::max);
    assert!(longest_ms <= 1.2 * target_ms, "a step of {longest_ms} ms, where {target_ms} ms are the target");
    // Nothing of the time is left unused: the work, the tokens and the steps of text fill it.
    let work_ms = 4.0 * f64::from(N_PARTS) * (PART_MS + TOKEN_MS);
    let own_ms = STEP_MS + 8.0 * TOKEN_MS;
    let least = (work_ms / (target_ms - own_ms)) as usize;
    assert!(world.text_steps_ms.len() <= least * 3 / 2, "{} steps for {least}", world.text_steps_ms.len());
}

#[test]
fn a_picture_alone_takes_whole_steps_and_lets_a_later_request_in() {
    let mut world = World::new();
    let picture = world.submit(Some(1), 1);
    assert!(world.step());
    let text = world.submit(None, 1);
    while !world.prompt_steps.contains_key(&picture) {
        assert!(world.step());
    }
    // 10 tokens of text, 1024 parts and 1024 tokens in steps of 512, half of one of them beside the text.
    assert!(world.prompt_steps[&picture] <= 7, "{:?}", world.prompt_steps);
    assert!(world.prompt_steps[&text] <= 3, "the text waits for one step: {:?}", world.prompt_steps);
}
