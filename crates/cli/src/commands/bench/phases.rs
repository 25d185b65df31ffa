//! The minimum work of the two phases of a round, prefill and decode. Does not know its duration.

use throng_core::scheduling::forward_work::{ForwardWork, Steps, Work};

/// Number of tokens of a user when the last user got its first token, and at the end.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    pub early: u64,
    pub total: u64,
}

/// Prefill phase, until every user has a first token: prompts of `n_prompt` tokens in total, in steps of
/// the largest size, and the further tokens that some users had by then.
pub fn prefill(work: &ForwardWork, n_prompt: u64, users: &[Arrived], max_batch_tokens: u32) -> Work {
    let n_logits: u64 = users.iter().map(|user| user.early).sum();
    let n_tokens = n_prompt + n_logits.saturating_sub(users.len() as u64);
    let n_steps = n_tokens.div_ceil(u64::from(max_batch_tokens.max(1)));
    work.of(Steps { n_steps, n_tokens, n_logit_steps: 1, n_logits })
}

/// Decode phase, after prefill: one step for each remaining token of the user with the most remaining
/// tokens, and the keys and values that each token attends to, after prompts of `prompt_tokens` each.
pub fn decode(work: &ForwardWork, prompt_tokens: u32, users: &[Arrived]) -> Work {
    let n_steps = users.iter().map(|user| user.total - user.early).max().unwrap_or(0);
    let n_tokens = users.iter().map(|user| user.total - user.early).sum();
    let mut all = work.of(Steps { n_steps, n_tokens, n_logit_steps: n_steps, n_logits: n_tokens });
    // Token number `i` of an answer is computed at the position before it.
    let position = |i: u64| u64::from(prompt_tokens) + i - 1;
    let kv = users.iter().flat_map(|user| user.early.max(1)..user.total).map(|i| work.kv_bytes(position(i)));
    all.bytes += kv.sum::<f64>();
    all
}

#[cfg(test)]
mod tests {
    use throng_kernels::quant::Format;
    use throng_model::LoadOptions;
    use throng_model::kv_cache::KvDtype;
    use throng_model::load::load_bytes;
    use throng_testkit::tiny_model::TinyModel;

    use super::*;

    /// One layer: 12 heads of 32 for Q, K and V, and four more matrices of 256 by 256.
    const LAYER: f64 = (12 * 32 * 256 + 4 * 256 * 256) as f64;
    const OUTPUT: f64 = (64 * 256) as f64;
    /// Bytes of a weight in Q8_0.
    const BYTES: f64 = 34.0 / 32.0;
    /// Keys and values of two heads of 32 in f16.
    const KV: f64 = (2 * 2 * 32 * 2) as f64;

    fn tiny() -> ForwardWork {
        let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
        let bytes = TinyModel::default().gguf(Format::Q8_0);
        load_bytes("tiny", &bytes, &options, &mut |_| {}).expect("loads").forward_work(KvDtype::F16)
    }

    #[test]
    fn prompts_are_computed_in_full_steps() {
        let users = [Arrived { early: 1, total: 5 }, Arrived { early: 3, total: 5 }];
        let work = prefill(&tiny(), 900, &users, 512);
        assert_eq!(
            work.int8_operations,
            2.0 * (902.0 * LAYER + 4.0 * OUTPUT),
            "two of the answer's beside the prompts"
        );
        assert_eq!(work.bytes, (2.0 * LAYER + OUTPUT) * BYTES);
        let one = prefill(&tiny(), 512, &users[..1], 512);
        assert_eq!(one.int8_operations, 2.0 * (512.0 * LAYER + OUTPUT));
        assert_eq!(one.bytes, (LAYER + OUTPUT) * BYTES);
    }

    #[test]
    fn a_step_reads_the_weights_once_and_the_keys_and_values_of_all_sequences() {
        let users = [Arrived { early: 1, total: 4 }, Arrived { early: 3, total: 4 }];
        let work = decode(&tiny(), 10, &users);
        assert_eq!(work.int8_operations, 2.0 * 4.0 * (LAYER + OUTPUT));
        // The first user's tokens 1, 2 and 3 see 11, 12 and 13 positions; the second's token 3 sees 13.
        assert_eq!(work.bytes, 3.0 * (LAYER + OUTPUT) * BYTES + (11 + 12 + 13 + 13) as f64 * KV);
        assert_eq!(decode(&tiny(), 10, &[Arrived { early: 4, total: 4 }]), Work::default());
    }
}
