"""llama.cpp's tools on one model, and its server."""

from dataclasses import dataclass

from . import llama_cpp_build, models, reading
from .llama_cpp_build import programs
from .places import Places, output
from .servers import Server

#: Tokens of a slot of the server beyond what a section needs.
SPARE = 64


@dataclass(frozen=True)
class LlamaCpp:
    """Its tools on one model, and its server."""

    places: Places
    threads: int
    name = "llama.cpp"

    def bench(self, model, prompt, generate, depth=0, variant="native"):
        """tokens/s of a prompt, or of what is generated after `depth` tokens: one of the two is asked for."""
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, "-r", 1, "-o", "jsonl"]
        arguments += ["-p", prompt, "-n", generate, "-d", depth]
        # Its default is flash attention, with which it decodes half as fast over a long context.
        arguments += ["-fa", "off"] if depth else []
        return reading.llama_bench(output(programs(self.places, variant).command("llama-bench", *arguments)))

    def batched_bench(self, model, prompt, generate, users, context, shared=False):
        """tokens/s of all users together while they generate, and the seconds until all is done."""
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, "-c", context]
        # A single user after the crowd, so that the crowd's line of output is not the last one, which can be lost.
        arguments += ["-npp", prompt, "-ntg", generate, "-npl", f"{users},1", "--output-format", "jsonl"]
        arguments += ["-pps", "-kvu"] if shared else []
        command = programs(self.places).command("llama-batched-bench", *arguments)
        return reading.llama_batched_bench(output(command), users)

    def embedding_server(self, model, texts=32, tokens=64):
        """A server that computes the vectors of so many texts at a time."""
        return self.server(model, texts, tokens, ["--embedding"])

    def server(self, model, users, tokens, extra=()):
        """A server with a slot of `tokens` for each user."""
        slots = ["-np", users, "-c", users * (tokens + SPARE), *extra]
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, *slots, "--host", "127.0.0.1", "--port"]
        llama, log = programs(self.places), self.places.results / "llama-server.log"
        return Server(lambda port: llama.command("llama-server", *arguments, port), log)

    def has(self, variant):
        """Whether there is a build for these instruction sets that runs here."""
        return llama_cpp_build.runs_here(variant)

    def prepare(self, variants):
        """Builds what is absent."""
        for variant in variants:
            programs(self.places, variant)

    def version(self):
        return f"llama.cpp of {llama_cpp_build.unpacked(self.places)[-1].name}"
