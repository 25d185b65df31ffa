//! The number of KV blocks that fit the memory.

use throng_cli::kv_budget::KvBudget;

const BUDGET: KvBudget = KvBudget {
    asked_bytes: None,
    available_bytes: Some(1000),
    block_bytes: 10,
    state_bytes: 0,
    max_sequence_tokens: 32,
    max_rows: 100,
};

#[test]
fn the_default_is_a_share_of_free_memory() {
    assert_eq!(BUDGET.n_blocks().expect("fits"), 40);
}

#[test]
fn no_more_blocks_are_allocated_than_sequences_can_use() {
    let budget = KvBudget { max_rows: 3, ..BUDGET };
    assert_eq!(budget.n_blocks().expect("fits"), 6);
}

#[test]
fn recurrent_states_take_at_most_half() {
    // Half of the 400 bytes holds 20 slots: ten sequences with a checkpoint each.
    let budget = KvBudget { state_bytes: 10, ..BUDGET };
    assert_eq!((budget.n_rows(), budget.n_blocks().expect("fits")), (10, 20));
    let few = KvBudget { max_rows: 3, ..budget };
    assert_eq!((few.n_rows(), few.n_blocks().expect("fits")), (3, 6));
    let large = KvBudget { state_bytes: 1000, ..BUDGET };
    assert!(large.n_rows() == 1 && large.n_blocks().is_err());
}

#[test]
fn a_configured_size_is_used_or_refused() {
    let asked = |asked_bytes| KvBudget { asked_bytes: Some(asked_bytes), ..BUDGET }.n_blocks();
    assert_eq!(asked(990).expect("fits"), 99);
    assert!(asked(1001).is_err());
    assert!(asked(9).is_err());
}
