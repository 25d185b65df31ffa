#!/usr/bin/env python3
"""Trains throng-starter and its draft model from nothing and writes their GGUF files: the whole recipe in one command.

Stops and goes on: a run that is started again continues from its last checkpoint, and the learning rate depends on
nothing but the step and the total, so that an interrupted run gives what an uninterrupted one gives.
"""

import environment

environment.enter()

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import export
from batches import BATCH_TOKENS, LENGTHS, batches, encoded, rows_of
from model import DRAFT, STARTER, Decoder
from optimizer import optimizers_for, schedule
from tokenizer import END_OF_TEXT, train_tokenizer

BUILD = Path(__file__).resolve().parent / "build"
SEEDS = {"tokenizer": 1, "throng-starter": 2, "throng-starter-draft": 3, "held-out": 4}
CONFIGS = {"throng-starter": STARTER, "throng-starter-draft": DRAFT}
TEACHERS = {"throng-starter-draft": "throng-starter"}
STEPS = {"throng-starter": 4600, "throng-starter-draft": 2000}
TOKENIZER_CONVERSATIONS = 60_000
CHECKPOINT_SECONDS = 180
LOG_STEPS = 50


def load_tokenizer() -> Tokenizer:
    path = BUILD / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    BUILD.mkdir(exist_ok=True)
    return train_tokenizer(path, SEEDS["tokenizer"], TOKENIZER_CONVERSATIONS)


def load_model(name: str) -> Decoder:
    """A trained model, from its last checkpoint."""
    model = Decoder(CONFIGS[name])
    model.load_state_dict(torch.load(BUILD / f"{name}.pt", weights_only=True)["model"])
    return model


def loss_of(model: Decoder, batch: tuple[Tensor, Tensor, Tensor], teacher: Decoder | None = None) -> Tensor:
    """Cross-entropy of the assistant's tokens; with a teacher, of what the teacher would say in their place."""
    inputs, positions, targets = batch
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.logits(model(inputs)[positions])
        if teacher:
            with torch.no_grad():
                targets = teacher.logits(teacher(inputs)[positions]).float().softmax(-1)
    return F.cross_entropy(logits.float(), targets)


@torch.no_grad()
def held_out_loss(model: Decoder, tokenizer: Tokenizer, n_conversations: int = 150) -> float:
    """Mean loss a token over held-out conversations, each on its own."""
    padding = tokenizer.token_to_id(END_OF_TEXT)
    total = count = 0.0
    for pair in encoded(tokenizer, SEEDS["held-out"], n_conversations, held_out=True):
        length = next(length for length in LENGTHS if len(pair[0]) <= length)
        batch = rows_of([pair], length, padding)
        total += loss_of(model, batch).item() * len(batch[2])
        count += len(batch[2])
    return total / count


def train(name: str, n_steps: int) -> None:
    tokenizer = load_tokenizer()
    model = Decoder(CONFIGS[name])
    model.initialize(SEEDS[name])
    optimizers = optimizers_for(model)
    checkpoint, first = BUILD / f"{name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        first = saved["step"]
    base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    model.compile_layers()
    teacher = load_model(TEACHERS[name]) if name in TEACHERS else None
    if teacher:
        teacher.compile_layers()
    source = batches(tokenizer, SEEDS[name], skip=first)
    started = saved_at = logged_at = time.monotonic()
    losses: list[float] = []
    for step in range(first, n_steps):
        loss = loss_of(model, next(source), teacher)
        loss.backward()
        for optimizer, rates in zip(optimizers, base_rates):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * schedule(step, n_steps)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        now = time.monotonic()
        if (step + 1) % LOG_STEPS == 0:
            speed = len(losses) * BATCH_TOKENS / (now - logged_at)
            print(
                f"{name} step {step + 1}/{n_steps} loss {sum(losses) / len(losses):.4f} {speed:.0f} tokens/s",
                flush=True,
            )
            losses, logged_at = [], now
        if now - saved_at > CHECKPOINT_SECONDS or step + 1 == n_steps:
            save(checkpoint, model, optimizers, base_rates, step + 1)
            saved_at = now
    minutes = (time.monotonic() - started) / 60
    print(f"{name} took {minutes:.1f} minutes for steps {first} to {n_steps}")
    print(f"{name} held-out loss {held_out_loss(load_model(name), tokenizer):.4f}", flush=True)


def save(
    path: Path, model: Decoder, optimizers: list[torch.optim.Optimizer], base_rates: list[list[float]], step: int
) -> None:
    """Writes a checkpoint in one move, with the undecayed learning rates."""
    for optimizer, rates in zip(optimizers, base_rates):
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(CONFIGS), help="train only this one")
    parser.add_argument("--steps", type=int, help="steps in all, instead of the recipe's")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in [arguments.model] if arguments.model else CONFIGS:
        train(name, arguments.steps or STEPS[name])
        export.export(load_model(name), name, load_tokenizer(), BUILD)


if __name__ == "__main__":
    main()
