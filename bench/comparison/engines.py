"""Runs both engines for the sections: their tools on one model, and their servers."""

import asyncio
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import load

from . import models, reading
from .peer import peer
from .places import Places
from .runs import Manner, in_turn
from .servers import Server

#: Tokens of a slot of llama-server beyond what a section needs.
SPARE = 64


@dataclass(frozen=True)
class Bench:
    """Both engines, ready to be measured."""

    places: Places
    throng: Path
    threads: int
    manner: Manner

    def throng_bench(self, model, prompt, generate, users=1, extra=()):
        sizes = ["--prompt-tokens", prompt, "--generate-tokens", generate, "--concurrency", users]
        # The text of random weights repeats itself, which would make most guesses right; llama.cpp does not guess either.
        flags = ["--threads", self.threads, "--json", "--no-limits", "--no-speculation"]
        command = [self.throng, "bench", self.file(model), *flags, *sizes, *extra]
        return reading.throng_bench(output(command))

    def llama_bench(self, model, *test, variant="native"):
        arguments = ["-m", self.file(model), "-t", self.threads, "-r", 1, "-o", "jsonl", *test]
        return reading.llama_bench(output(peer(self.places, variant).command("llama-bench", *arguments)))

    def llama_batched_bench(self, model, prompt, generate, users, context, *extra):
        arguments = ["-m", self.file(model), "-t", self.threads, "-c", context, "--output-format", "jsonl"]
        # A single user after the crowd, so that the crowd's line of output is not the last one, which can be lost.
        arguments += ["-npp", prompt, "-ntg", generate, "-npl", f"{users},1", *extra]
        return reading.llama_batched_bench(output(peer(self.places).command("llama-batched-bench", *arguments)), users)

    def throng_server(self, model):
        command = [self.throng, "serve", self.file(model), "--threads", self.threads, "--no-speculation", "--port"]
        return Server(lambda port: [*command, port], self.places.results / "throng-serve.log")

    def llama_server(self, model, users, tokens):
        """The command line of llama-server with a slot of `tokens` for each user."""
        slots = ["-np", users, "-c", users * (tokens + SPARE)]
        command = ["-m", self.file(model), "-t", self.threads, *slots, "--host", "127.0.0.1", "--port"]
        llama, log = peer(self.places), self.places.results / "llama-server.log"
        return Server(lambda port: llama.command("llama-server", *command, port), log)

    @contextmanager
    def both_servers(self, model, users, tokens):
        """Both servers at once; the one that is not measured is idle. Each has answered one request."""
        with self.throng_server(model) as throng, self.llama_server(model, users, tokens) as llama:
            for server in (throng, llama):
                asyncio.run(load.Stream(model, load.Prompts(0)(64), 8).run(server.port))
            yield throng, llama

    def file(self, model):
        return models.path(self.places, model)

    def in_turn(self, rows, throng, llama, pids=()):
        return in_turn(self.manner, rows, throng, llama, pids)


def output(command):
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout
