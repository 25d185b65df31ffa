//! Counts what a run of the simulation covered, so that a test can require that everything was covered.

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// How often what happened.
        #[derive(Debug, Default, Clone, Copy)]
        pub struct Seen {
            $(pub $name: usize,)*
        }

        impl Seen {
            pub fn add(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }

            /// What was seen least, and how often.
            pub fn rarest(&self) -> (&'static str, usize) {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().min_by_key(|(_, n)| *n).expect("there are counts")
            }
        }
    };
}

counts!(
    inputs,
    steps,
    sequences,
    finished,
    aborted,
    failed_steps,
    panicked_steps,
    timed_out_steps,
    late_steps,
    failed_sequences,
    executors_replaced,
    executors_not_replaced,
    queue_full,
    never_fits,
    duplicate_ids,
    refused_unhealthy,
    refused_stopped,
    paused,
    resumed,
    slow_readers,
    queue_timeouts,
    surplus_paused,
    drains_finished,
    drains_cut_short,
    preemptions,
    hit_tokens,
    beams,
    steps_ahead,
    carried,
    left_out,
    begun_masks,
    mask_timeouts,
);
