"""Tiny models with random weights, tokens to calibrate with, and a tokenizer for the tools that insist on one."""

import torch
import transformers
from tokenizers import Tokenizer, models

VOCABULARY = 256
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=512,
    # Wide enough that a wrong factor of one matrix is far above every tolerance.
    initializer_range=0.06,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)
CONFIGS = {
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE),
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "llama4": lambda: transformers.Llama4TextConfig(
        **{**SHAPE, "intermediate_size": 256},
        intermediate_size_mlp=256,
        num_local_experts=4,
        num_experts_per_tok=1,
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **{**SHAPE, "intermediate_size": 256}, num_local_experts=4, num_experts_per_tok=2
    ),
}


def save(name, folder):
    """A model with random weights, the same at each call, in bfloat16 as published models are."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.bfloat16)
    model.save_pretrained(folder)


def load(folder, **options):
    """A float model to be quantized."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)


def sentences(count=8, length=64):
    """Token ids to calibrate with."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, VOCABULARY, (count, length), generator=generator)


def prompt(length=48):
    """The token ids whose log-probabilities are compared."""
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(3))


def tokenizer():
    """One word for each token."""
    words = {f"t{i}": i for i in range(VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="t0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="t0", pad_token="t0", eos_token="t1"
    )
