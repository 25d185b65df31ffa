"""ik_llama.cpp: a fork of llama.cpp with faster products on CPUs. Built once for this machine and its library again for
smaller instruction sets, and its tools with the flags that a short trial finds best."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import models, reading
from .llama_cpp import SPARE
from .llama_cpp_build import runs_here
from .places import Places, output, run, run_tool
from .servers import Server

REPOSITORY = "https://github.com/ikawrakow/ik_llama.cpp"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")
AVX2 = ("avx2", "fma", "f16c", "bmi2")
AVX512 = (*AVX2, *(f"avx512{part}" for part in ("f", "bw", "vl", "dq", "cd", "vbmi", "vnni", "bf16")))
#: The compiler's flags of each build besides the native one; its own options leave out what its kernels ask for.
VARIANTS = {"avx2": AVX2, "avx2-vnni": (*AVX2, "avxvnni"), "avx512": AVX512}
#: What the trial chooses from: repacking of weights at the start, and flash attention.
FLAGS = tuple(("-rtr", repack, "-fa", flash) for repack in (0, 1) for flash in (0, 1))


@dataclass(frozen=True)
class IkLlamaCpp:
    """Its tools on one model, and its server. The same methods as those of `llama_cpp.LlamaCpp`."""

    places: Places
    threads: int
    source: Path
    name = "ik_llama.cpp"

    def bench(self, model, prompt, generate, depth=0, variant="native"):
        flags = self.best_flags(model, "decode" if generate else "prefill", variant)
        # Generating after a prompt of `depth` tokens, without the time of the prompt.
        test = ["-p", 0, "-n", 0, "-gp", f"{depth},{generate}"] if depth else ["-p", prompt, "-n", generate]
        return self.measure(model, test, flags, variant)

    def measure(self, model, test, flags, variant="native"):
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, "-r", 1, "-o", "json", *test, *flags]
        return reading.ik_bench(output(self.command("llama-bench", arguments, variant)))

    def batched_bench(self, model, prompt, generate, users, context, shared=False):
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, "-c", context]
        arguments += ["-npp", prompt, "-ntg", generate, "-npl", users, *self.common_flags(model)]
        done = run_tool(self.command("llama-batched-bench", arguments + ["-pps"] * shared))
        return reading.ik_batched_bench(done.stdout + done.stderr, users)

    def server(self, model, users, tokens):
        slots = ["-np", users, "-c", users * (tokens + SPARE)]
        arguments = ["-m", models.path(self.places, model), "-t", self.threads, *slots, *self.common_flags(model)]
        arguments += ["--host", "127.0.0.1", "--port"]
        log = self.places.results / "ik-llama-server.log"
        return Server(lambda port: self.command("llama-server", [*arguments, port]), log)

    def has(self, variant):
        return runs_here(variant)

    def best_flags(self, model, phase, variant="native"):
        """The flags of llama-bench with which a short run of this phase is fastest, found once a model and build."""
        path = self.places.results / "ik-flags.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        key = f"{model} {phase} {variant}"
        if key not in known:
            test = ["-p", 0, "-n", 32] if phase == "decode" else ["-p", 256, "-n", 0]
            known[key] = max(FLAGS, key=lambda flags: self.measure(model, test, flags, variant))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known, indent=1) + "\n")
            print(f"ik_llama.cpp, {key}: {' '.join(map(str, known[key]))}", file=sys.stderr)
        return known[key]

    def common_flags(self, model):
        """The best flags for generating, as the other programs spell them."""
        _, repack, _, flash = self.best_flags(model, "decode")
        return ["-rtr"] * repack + ["-fa", "on" if flash else "off"]

    def command(self, program, arguments, variant="native"):
        native, built = self.source / "build", self.source / folder(variant)
        # The library is found where it was built, unless another one comes first.
        libraries = "" if variant == "native" else built / "ggml" / "src"
        return ["env", f"LD_LIBRARY_PATH={libraries}", native / "bin" / program, *arguments]

    def prepare(self, variants):
        for variant in variants:
            built = self.source / folder(variant)
            if variant == "native" and not all((built / "bin" / program).exists() for program in PROGRAMS):
                self.build(built, ["-DGGML_NATIVE=ON"], PROGRAMS)
            elif variant != "native" and not (built / "ggml" / "src" / "libggml.so").exists():
                flags = " ".join(f"-m{instruction}" for instruction in VARIANTS[variant])
                languages = [f"-DCMAKE_{language}_FLAGS={flags}" for language in ("C", "CXX")]
                self.build(built, ["-DGGML_NATIVE=OFF", *languages], ["ggml"])

    def build(self, built, flags, targets):
        parts = ["-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
        self.places.cmake(self.source, built, [*parts, *flags], targets)

    def version(self):
        if not (self.source / ".git").exists():
            return f"ik_llama.cpp of an unknown commit in {self.source}"
        commit = ["git", "-C", self.source, "log", "-1", "--format=%h of %cs"]
        return f"ik_llama.cpp {output(commit).strip()}"


def folder(variant):
    return "build" if variant == "native" else f"build-{variant}"


def sources(places, given):
    """The folder of its sources: the given one, or a clone. None where it cannot be cloned."""
    if given:
        return given.absolute()
    clone = places.cache / "ik_llama.cpp"
    if not clone.exists():
        try:
            run(["git", "clone", "--quiet", "--depth", 1, REPOSITORY, clone])
        except (OSError, subprocess.CalledProcessError):
            print("ik_llama.cpp is left out: it cannot be cloned, and --ik names no folder", file=sys.stderr)
            return None
    return clone
