"""A forward pass in float32 of the GGUF files that the tests of this folder use: what every quantized kernel is compared with.

Weights are expanded by the `gguf` package, which is llama.cpp's own. Two architectures are enough: `llama` (SmolLM2) and `gemma3`.
"""

import functools
import math

import gguf
import numpy as np
from gguf.quants import dequantize


class Float32Model:
    """A GGUF model with all weights in float32."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type)
            .reshape(tensor.shape[::-1])
            .astype(np.float32, copy=False)
            for tensor in reader.tensors
        }
        self.architecture = reader.fields["general.architecture"].contents()
        # Those of the tokenizer are left out: reading a vocabulary takes longer than the forward pass.
        mine = self.architecture + "."
        self._fields = {name: field.contents() for name, field in reader.fields.items() if name.startswith(mine)}
        self.is_gemma = self.architecture == "gemma3"
        if self.architecture not in ("llama", "gemma3"):
            raise ValueError(f"no reference for {self.architecture}")

    def _field(self, name, otherwise=None):
        return self._fields.get(f"{self.architecture}.{name}", otherwise)

    def log_probabilities(self, ids):
        """Log-probabilities of the token after each of `ids`, of shape `[len(ids), vocabulary]`."""
        width = self._field("embedding_length")
        hidden = self.weights["token_embd.weight"][ids]
        if self.is_gemma:
            hidden = hidden * np.float32(np.sqrt(width))
        for layer in range(self._field("block_count")):
            hidden = self._layer(layer, hidden)
        hidden = self._norm(hidden, "output_norm")
        logits = hidden @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def _layer(self, layer, hidden):
        block = f"blk.{layer}."
        attended = self._attention(layer, block, self._norm(hidden, block + "attn_norm"))
        if self.is_gemma:
            attended = self._norm(attended, block + "post_attention_norm")
        hidden = hidden + attended
        entered = self._norm(hidden, block + "ffn_norm")
        gate = self._product(entered, block + "ffn_gate")
        gate = gelu(gate) if self.is_gemma else gate / (1 + np.exp(-gate))
        left = self._product(gate * self._product(entered, block + "ffn_up"), block + "ffn_down")
        if self.is_gemma:
            left = self._norm(left, block + "post_ffw_norm")
        return hidden + left

    def _attention(self, layer, block, entered):
        n_tokens = len(entered)
        n_heads = self._field("attention.head_count")
        n_kv_heads = self._field("attention.head_count_kv")
        query = self._product(entered, block + "attn_q").reshape(n_tokens, n_heads, -1)
        key = self._product(entered, block + "attn_k").reshape(n_tokens, n_kv_heads, -1)
        value = self._product(entered, block + "attn_v").reshape(n_tokens, n_kv_heads, -1)
        # Five layers of Gemma 3 see a window, with another base of their rotation, and the sixth all tokens.
        is_local = self.is_gemma and (layer + 1) % 6 != 0
        if self.is_gemma:
            query = self._norm(query, block + "attn_q_norm")
            key = self._norm(key, block + "attn_k_norm")
        base = 10_000.0 if is_local else self._field("rope.freq_base")
        query, key = (rotate(heads, base, is_interleaved=not self.is_gemma) for heads in (query, key))
        per_group = n_heads // n_kv_heads
        key, value = (np.repeat(heads, per_group, axis=1) for heads in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.float32(np.sqrt(query.shape[-1]))
        position = np.arange(n_tokens)
        distance = position[:, None] - position[None, :]
        window = self._field("attention.sliding_window") if is_local else n_tokens
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", scores, value).reshape(n_tokens, -1)
        return self._product(attended, block + "attn_output")

    def _product(self, rows, name):
        return rows @ self.weights[name + ".weight"].T

    def _norm(self, rows, name):
        epsilon = self._field("attention.layer_norm_rms_epsilon")
        mean = np.mean(np.square(rows), axis=-1, keepdims=True)
        return rows / np.sqrt(mean + epsilon) * self.weights[name + ".weight"]


@functools.cache
def expected(path, ids):
    """Log-probabilities of the model of a GGUF file after each token of the tuple `ids`, computed once."""
    return Float32Model(path).log_probabilities(list(ids))


def gelu(x):
    """GELU in its approximation by tanh, as Gemma has it."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotate(heads, base, is_interleaved):
    """Rotary position embedding of `[tokens, heads, width]`: of neighbours, as GGUF stores Llama, or of halves."""
    n_tokens, _, width = heads.shape
    frequencies = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    angles = np.arange(n_tokens)[:, None, None] * frequencies
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    if is_interleaved:
        first, second = heads[..., 0::2], heads[..., 1::2]
    else:
        first, second = heads[..., : width // 2], heads[..., width // 2 :]
    turned = first * cosine - second * sine, first * sine + second * cosine
    if is_interleaved:
        return np.stack(turned, axis=-1).reshape(heads.shape)
    return np.concatenate(turned, axis=-1)
