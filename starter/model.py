"""The network: a small Qwen3-shaped decoder, written for training on a CPU, and correct on a GPU too.

Tokens of a batch are kept as one flat list [n_tokens, hidden], so that everything except attention has a single
shape whatever the lengths of the conversations are, and is compiled once. Parameter names are those of the
Hugging Face checkpoint, so that exporting is a plain copy. Does not know text, files or optimizers.
Weights are drawn on the CPU whatever the model's device, so that a seed means the same on every device.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model. Every width is a multiple of 32, the block size of Q8_0."""

    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int = 4096
    max_positions: int = 1024
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def as_dict(self) -> dict:
        return asdict(self)


STARTER = ModelConfig(n_layers=6, hidden=256, n_heads=4, n_kv_heads=2, head_dim=64, intermediate=768)
DRAFT = ModelConfig(n_layers=2, hidden=128, n_heads=2, n_kv_heads=1, head_dim=64, intermediate=320)
LARGE = ModelConfig(n_layers=12, hidden=512, n_heads=8, n_kv_heads=4, head_dim=64, intermediate=1536)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich, 2019), computed in float32 and returned in the type of `x`."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope_tables(config: ModelConfig, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Cosines and sines [max_positions, 1, head_dim], in the half-split layout of Hugging Face."""
    frequencies = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim)
    angles = torch.outer(torch.arange(config.max_positions, device=device).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021) of [n_tokens, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [n_rows, heads, length, head_dim]; plain products beat the fused kernel on short rows of a CPU."""
    n_rows, n_heads, length, head_dim = q.shape
    n_groups = n_rows * k.shape[1]
    if length > 256 or q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    q = q.reshape(n_groups, -1, head_dim) * head_dim**-0.5
    scores = (q @ k.reshape(n_groups, length, head_dim).mT).view(n_groups, -1, length, length)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.float().masked_fill(future, float("-inf")).softmax(-1).to(v.dtype)
    attended = weights.view(n_groups, -1, length) @ v.reshape(n_groups, length, head_dim)
    return attended.view(n_rows, n_heads, length, head_dim)


class Attention(nn.Module):
    """Grouped-query attention with RMSNorm on queries and keys (Qwen3)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, width, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim)
        self.k_norm = nn.RMSNorm(config.head_dim)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [n_tokens, heads, head_dim] with positions applied."""
        config = self.config
        q = self.q_proj(x).view(-1, config.n_heads, config.head_dim)
        k = self.k_proj(x).view(-1, config.n_kv_heads, config.head_dim)
        v = self.v_proj(x).view(-1, config.n_kv_heads, config.head_dim)
        q = rotate(rms_norm(q, self.q_norm.weight, config.norm_eps).float(), cos, sin).to(x.dtype)
        k = rotate(rms_norm(k, self.k_norm.weight, config.norm_eps).float(), cos, sin).to(x.dtype)
        return q, k, v


class Mlp(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm block, split where attention needs the shape of the batch."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.eps = config.norm_eps
        self.input_layernorm = nn.RMSNorm(config.hidden)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden)
        self.mlp = Mlp(config)

    def before_attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(rms_norm(x, self.input_layernorm.weight, self.eps), cos, sin)

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(attended)
        return x + self.mlp(rms_norm(x, self.post_attention_layernorm.weight, self.eps))


class Decoder(nn.Module):
    """The whole model; the output matrix is the embedding."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.hidden)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.before_attention = Layer.before_attention
        self.after_attention = Layer.after_attention

    def initialize(self, seed: int) -> None:
        """Normal weights of scale 1/sqrt(fan in); the two projections into the residual stream start at zero."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                scale = 0.0
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)

    def compile_layers(self) -> None:
        """Fuses everything around attention; worth it when many batches of the same size follow."""
        self.before_attention = torch.compile(Layer.before_attention, dynamic=False)
        self.after_attention = torch.compile(Layer.after_attention, dynamic=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Normed hidden states [n_rows * length, hidden] of right-padded rows of tokens [n_rows, length]."""
        n_rows, length = tokens.shape
        config = self.config
        cos = self.cos[:length].expand(n_rows, length, 1, -1).reshape(n_rows * length, 1, -1)
        sin = self.sin[:length].expand(n_rows, length, 1, -1).reshape(n_rows * length, 1, -1)
        x = self.embed_tokens(tokens.reshape(-1))
        for layer in self.layers:
            heads = self.before_attention(layer, x, cos, sin)
            q, k, v = (part.view(n_rows, length, -1, config.head_dim).transpose(1, 2) for part in heads)
            attended = attention(q, k, v)
            x = self.after_attention(layer, x, attended.transpose(1, 2).reshape(n_rows * length, -1))
        return rms_norm(x, self.norm.weight, config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embed_tokens.weight.to(hidden.dtype).T
