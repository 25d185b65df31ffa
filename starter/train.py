#!/usr/bin/env python3
"""Trains throng-starter and its draft model from scratch and writes their GGUF files: the whole recipe in one command.

A run that is started again continues from its last checkpoint, on another device too; the learning rate depends only
on the step and the total.
"""

import environment

environment.enter()

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from batches import LENGTHS, ahead, batches, encoded, rows_of
from export import write_folder, write_gguf
from model import Decoder
from optimizer import optimizers_for, schedule
from recipe import HELD_OUT_SEED, RECIPES, SIZES, TOKENIZER_CONVERSATIONS, TOKENIZER_SEED
from tokenizer import END_OF_TEXT, train_tokenizer

HERE = Path(__file__).resolve().parent
BUILD, SHIPPED = HERE / "build", HERE / "models"
CHECKPOINT_SECONDS = 180
LOG_STEPS = 50
MOST_WORKERS = 8


def load_tokenizer() -> Tokenizer:
    path = BUILD / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    BUILD.mkdir(exist_ok=True)
    return train_tokenizer(path, TOKENIZER_SEED, TOKENIZER_CONVERSATIONS)


def load_model(name: str, device: torch.device) -> Decoder:
    """A trained model, from its last checkpoint."""
    model = Decoder(RECIPES[name].config).to(device)
    model.load_state_dict(torch.load(BUILD / f"{name}.pt", map_location=device, weights_only=True)["model"])
    return model


def moved(batch: tuple[Tensor, Tensor, Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """The batch on the device; a GPU fetches it while it still computes."""
    if device.type != "cuda":
        return batch
    return tuple(part.pin_memory().to(device, non_blocking=True) for part in batch)


def loss_of(model: Decoder, batch: tuple[Tensor, Tensor, Tensor], teacher: Decoder | None = None) -> Tensor:
    """Cross-entropy of the assistant's tokens; with a teacher, against the teacher's probabilities."""
    device = model.embed_tokens.weight.device
    inputs, positions, targets = moved(batch, device)
    with torch.autocast(device.type, torch.bfloat16):
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
    for pair in encoded(tokenizer, HELD_OUT_SEED, n_conversations, held_out=True):
        length = next(length for length in LENGTHS if len(pair[0]) <= length)
        batch = rows_of([pair], length, padding)
        total += loss_of(model, batch).item() * len(batch[2])
        count += len(batch[2])
    return total / count


class Run:
    """A model in training with all that a checkpoint holds; goes on from the checkpoint in `folder`, if there is one."""

    def __init__(self, name: str, n_steps: int, device: torch.device, folder: Path):
        self.n_steps, self.first = n_steps, 0
        self.model = Decoder(RECIPES[name].config)
        self.model.initialize(RECIPES[name].seed)
        self.model.to(device)
        self.optimizers = optimizers_for(self.model)
        self.checkpoint = folder / f"{name}.pt"
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, map_location=device, weights_only=True)
            self.model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"]):
                optimizer.load_state_dict(state)
            self.first = saved["step"]
        self.base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    def set_rates(self, factor: float) -> None:
        for optimizer, rates in zip(self.optimizers, self.base_rates):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor

    def step(self, step: int, batch: tuple[Tensor, Tensor, Tensor], teacher: Decoder | None) -> Tensor:
        """Trains on a batch and returns its loss."""
        loss = loss_of(self.model, batch, teacher)
        loss.backward()
        self.set_rates(schedule(step, self.n_steps))
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach()

    def save(self, step: int) -> None:
        """Writes a checkpoint atomically, with the undecayed learning rates."""
        self.set_rates(1.0)
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        part = self.checkpoint.with_suffix(".part")
        torch.save({"model": self.model.state_dict(), "optimizers": states, "step": step}, part)
        part.rename(self.checkpoint)


def train(name: str, n_steps: int, device: torch.device, n_workers: int) -> None:
    """Trains one model to its last step, and prints its progress."""
    recipe, tokenizer = RECIPES[name], load_tokenizer()
    run = Run(name, n_steps, device, BUILD)
    run.model.compile_layers()
    teacher = load_model(recipe.teacher, device) if recipe.teacher else None
    if teacher:
        teacher.compile_layers()
    source = batches(tokenizer, recipe.seed, recipe.batch_tokens, run.first, n_workers)
    if n_workers:
        source = ahead(source)
    started = saved_at = logged_at = time.monotonic()
    losses: list[Tensor] = []
    for step in range(run.first, n_steps):
        losses.append(run.step(step, next(source), teacher))
        if (step + 1) % LOG_STEPS == 0:
            loss, now = torch.stack(losses).mean().item(), time.monotonic()
            speed = len(losses) * recipe.batch_tokens / (now - logged_at)
            print(f"{name} step {step + 1}/{n_steps} loss {loss:.4f} {speed:.0f} tokens/s", flush=True)
            losses, logged_at = [], now
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS or step + 1 == n_steps:
            run.save(step + 1)
            saved_at = time.monotonic()
    source.close()
    minutes = (time.monotonic() - started) / 60
    loss = held_out_loss(load_model(name, device), tokenizer)
    print(f"{name}: {minutes:.1f} minutes from step {run.first} to {n_steps}, held-out loss {loss:.4f}", flush=True)


def device_of(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where PyTorch finds one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="starter", help="the shipped models, or a larger one")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--steps", type=int, help="steps in all, instead of the recipe's")
    parser.add_argument("--threads", type=int, default=2, help="of a training on the CPU")
    parser.add_argument("--workers", type=int, help="processes that make text; by default none on the CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = device_of(arguments.device)
    n_workers = arguments.workers
    if n_workers is None:
        n_workers = min(os.cpu_count() or 1, MOST_WORKERS) if device.type == "cuda" else 0
    for name in SIZES[arguments.size]:
        train(name, arguments.steps or RECIPES[name].n_steps, device, n_workers)
        model, tokenizer = load_model(name, torch.device("cpu")), load_tokenizer()
        write_folder(model, tokenizer, BUILD / name)
        write_gguf(model, name, tokenizer, (SHIPPED if arguments.size == "starter" else BUILD) / f"{name}.gguf")


if __name__ == "__main__":
    main()
