"""Log-probabilities of real text: against a forward pass in float32 and against llama.cpp, with trained weights."""

import pytest
from divergence import N_REPORTED, Comparison
from engines import LlamaCpp, Throng
from float32 import expected
from packages import TEXT

pytestmark = pytest.mark.nightly

# More than the window of Gemma 3's local layers, which is 512.
N_TEXT_TOKENS = 560

# llama.cpp quantizes activations to eight bits as Throng does. Where both round, neither is always nearer to float32: a tenth is the
# spread between instruction sets.
NOT_WORSE = 1.1
# The two most likely tokens are so far apart, in nats, that rounding of activations does not exchange them.
CLEAR_MARGIN = 0.25
# The same where two engines round, each in its own way.
CLEAR_TO_BOTH = 0.5
N_GREEDY = 48
PROMPTS = ["The capital of France is", "Once upon a time, there was a", "To make a cup of tea, you first", "def fibonacci(n):"]


def compare(engine, path, ids):
    """What an engine says of the text's tokens, beside the float32 model of the same file."""
    return Comparison(expected(path, tuple(ids))[:-1], ids, engine.reported(ids))


def compare_both(throng, path):
    """Throng's comparison and llama.cpp's."""
    ids = throng.tokens(TEXT.read_text(), N_TEXT_TOKENS)
    ours, theirs = compare(throng, path, ids), compare(LlamaCpp(path), path, ids)
    print(f"{path.name}: {len(ids)} tokens, perplexity {ours.perplexity:.3f}")
    for name, found in (("Throng", ours), ("llama.cpp", theirs)):
        print(f"  {name}: KL {found.mean_divergence:.6f} nats, best token equal {found.best_token_rate:.4f}")
    return ours, theirs


def assert_not_worse(ours, theirs):
    assert ours.mean_divergence <= theirs.mean_divergence * NOT_WORSE
    # Where the reference is sure of its best token, so are we.
    assert ours.same_best[ours.margins > CLEAR_MARGIN].all()


def test_smollm2_is_as_near_to_float32_as_llama_cpp(smollm2, smollm2_path):
    ours, theirs = compare_both(Throng(smollm2, "smollm2"), smollm2_path)
    assert_not_worse(ours, theirs)
    assert ours.mean_divergence < 2e-3


def test_gemma3_is_as_near_to_float32_as_llama_cpp(gemma3, gemma3_path):
    ours, theirs = compare_both(Throng(gemma3, "gemma3"), gemma3_path)
    assert_not_worse(ours, theirs)


def assert_greedy_text_is_that_of_llama_cpp(throng, path):
    """Our most likely token after each beginning of llama.cpp's text is its own, where it clearly prefers that."""
    llama_cpp = LlamaCpp(path)
    n_clear = 0
    for prompt in PROMPTS:
        ids = throng.tokens(prompt)
        theirs, margins = llama_cpp.greedy(ids, N_GREEDY)
        best = [max(position, key=position.get) for position in throng.reported(ids + theirs)[len(ids) - 1 :]]
        differing = [i for i in range(N_GREEDY) if best[i] != theirs[i]]
        assert all(margins[i] < CLEAR_TO_BOTH for i in differing), f"{prompt!r}: {differing} differ, {best} and {theirs}"
        # What is generated is what these probabilities say, up to the first that differs.
        n_equal = min(differing, default=N_GREEDY)
        assert throng.greedy(ids, N_GREEDY)[:n_equal] == theirs[:n_equal]
        n_clear += sum(margin >= CLEAR_TO_BOTH for margin in margins)
        print(f"{path.name}: {prompt!r}: {len(differing)} of {N_GREEDY} tokens differ")
    # Margins that are never clear would prove nothing.
    assert n_clear > len(PROMPTS) * N_GREEDY // 3, n_clear


def test_greedy_text_of_smollm2_is_that_of_llama_cpp(smollm2, smollm2_path):
    assert_greedy_text_is_that_of_llama_cpp(Throng(smollm2, "smollm2"), smollm2_path)


def test_greedy_text_of_gemma3_is_that_of_llama_cpp(gemma3, gemma3_path):
    assert_greedy_text_is_that_of_llama_cpp(Throng(gemma3, "gemma3"), gemma3_path)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_keys_and_values_of_fewer_bits_cost_little(start, smollm2_path, kv_type):
    arguments = ["--max-logprobs", N_REPORTED, "--kv-cache-dtype", kv_type, "--served-model-name", "smollm2"]
    with start(smollm2_path, *arguments) as server:
        throng = Throng(server, "smollm2")
        found = compare(throng, smollm2_path, throng.tokens(TEXT.read_text(), N_TEXT_TOKENS))
    print(f"keys and values in {kv_type}: KL {found.mean_divergence:.6f} nats, perplexity {found.perplexity:.3f}")
    assert found.mean_divergence < 4e-3
