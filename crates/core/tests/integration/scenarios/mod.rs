//! The scheduler's decisions as text: each file of `scenarios/` has inputs and, indented below, what the
//! scheduler does. `UPDATE_EXPECT=1 cargo test -p throng-core --test integration scenarios` rewrites the
//! files with the current behaviour.

mod stage;

use stage::Stage;

fn check(file: expect_test::ExpectFile) {
    let script = file.data();
    let mut stage = Stage::default();
    let mut out = String::new();
    for line in script.lines().filter(|line| !line.starts_with(' ')) {
        out.push_str(line);
        out.push('\n');
        let words: Vec<&str> = line.split_whitespace().collect();
        for effect in stage.run(&words) {
            out.push_str(&format!("    {effect}\n"));
        }
    }
    file.assert_eq(&out);
}

macro_rules! scenarios {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(expect_test::expect_file![concat!(stringify!($name), ".txt")]);
        }
    )*};
}

scenarios! {
    chunked_prefill
    prefix_hit
    siblings_share
    common_prefix_at_once
    preemption
    priority
    pause
    fairness
    abort_in_flight
    queue_bound
    step_time_target
    prompt_logprobs
    lost_step
    short_passes_long
    shares
    drafts
    prompt_lookup
    two_steps_in_flight
}
