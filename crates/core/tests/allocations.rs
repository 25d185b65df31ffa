//! A token costs no allocation: once its sequences run, a step is planned and completed in existing buffers.

use allocation_counter::measure;
use throng_core::request::{Request, RequestId, SamplingParams, TenantId};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_testkit::paper_executor::PaperExecutor;

const CAPACITY: ExecutorCapacity = ExecutorCapacity {
    n_blocks: 512,
    max_batch_tokens: 512,
    max_batch_sequences: 16,
    max_sequence_tokens: 1024,
    vocabulary_size: 1000,
    n_state_slots: 0,
    max_steps_in_flight: 1,
    takes_whole_prompts: false,
    takes_media: false,
    keeps_media_whole: false,
    n_stages: 1,
};

#[test]
fn a_token_costs_no_allocation() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), CAPACITY);
    let mut executor = PaperExecutor::new(CAPACITY);
    for id in 0..16_u32 {
        let sampling = SamplingParams { max_tokens: u32::MAX, repetition_penalty: 1.1, ..Default::default() };
        let request = Request {
            tenant: TenantId(if id % 2 == 0 { "even" } else { "odd" }.into()),
            ..Request::plain(RequestId(u64::from(id)), (0..20 + id).collect::<Vec<_>>(), sampling)
        };
        scheduler.submit(request, Timestamp::default()).expect("there is room");
    }
    let (mut now, mut output, mut n_tokens) = (Timestamp::default(), StepOutput::default(), 0);
    let mut step = |scheduler: &mut Scheduler| {
        let mut planned = None;
        let of_plan = measure(|| planned = scheduler.plan(now, &mut |_| {}));
        let planned = planned.expect("all run");
        executor.execute(planned.batch(), &mut output).expect("paper does not fail");
        n_tokens += output.n_sequences();
        now = now + Nanos::from_ms(7);
        let of_end = measure(|| scheduler.complete(planned, &output, now, &mut |_| {}));
        of_plan.count_total + of_end.count_total
    };
    // Histories and block tables grow with every token: the batch's buffers double until they are large enough.
    for _ in 0..320 {
        step(&mut scheduler);
    }
    let n_allocations: u64 = (0..150).map(|_| step(&mut scheduler)).sum();
    assert!(n_tokens > 16 * 460, "they did not run: {n_tokens} tokens");
    assert_eq!(n_allocations, 0, "over 150 steps of 16 tokens");
}
