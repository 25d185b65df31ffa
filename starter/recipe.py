"""The shape, the amount of training and the seed of every model. Does not know devices and files."""

from dataclasses import dataclass

from model import DRAFT, LARGE, STARTER, ModelConfig

TOKENIZER_SEED = 1
TOKENIZER_CONVERSATIONS = 60_000
HELD_OUT_SEED = 4


@dataclass(frozen=True)
class Recipe:
    """`batch_tokens` a step, padding included. With a `teacher`, a model that is trained before, the targets are the
    teacher's probabilities instead of the text."""

    config: ModelConfig
    n_steps: int
    batch_tokens: int
    seed: int
    teacher: str | None = None


RECIPES = {
    "throng-starter": Recipe(STARTER, n_steps=3400, batch_tokens=3072, seed=2),
    "throng-starter-draft": Recipe(DRAFT, n_steps=1000, batch_tokens=3072, seed=3, teacher="throng-starter"),
    "throng-starter-large": Recipe(LARGE, n_steps=6000, batch_tokens=8 * 3072, seed=2),
}

SIZES = {"starter": ["throng-starter", "throng-starter-draft"], "large": ["throng-starter-large"]}
"""What one run trains."""
