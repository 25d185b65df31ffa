"""The folders of the comparison, and the Python environment with its tools."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Places:
    """`cache` has everything that is built or made once; `throng` is the binary, built when absent."""

    cache: Path
    throng: Path | None = None

    @property
    def models(self):
        return self.cache / "models"

    @property
    def results(self):
        return self.cache / "measured"

    def tools(self):
        """The folder of the environment's programs, created when absent."""
        programs = self.cache / "venv" / "bin"
        if not all((programs / program).exists() for program in ("cmake", "ninja", "gguf-dump")):
            run([sys.executable, "-m", "venv", self.cache / "venv"])
            run([programs / "python", "-m", "pip", "install", "--quiet", "cmake", "ninja", "gguf", "numpy"])
        return programs

    def cmake(self, source, folder, flags, targets):
        """Builds targets of a CMake project as shared libraries and programs."""
        cmake, ninja = self.tools() / "cmake", self.tools() / "ninja"
        common = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Release"]
        run([cmake, "-S", source, "-B", folder, *common, "-DBUILD_SHARED_LIBS=ON", *flags])
        run(["nice", cmake, "--build", folder, "--target", *targets])

    def throng_binary(self):
        """The release binary of this checkout, or the given one."""
        if self.throng:
            return self.throng
        run(["cargo", "build", "--release", "--package", "throng-cli"], cwd=ROOT)
        return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "throng"


def run(command, **how):
    """Runs a step of the preparation and stops the whole comparison when it fails."""
    print("$", *command, file=sys.stderr)
    return subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, **how)


def output(command):
    """What a tool printed to standard output."""
    return run_tool(command).stdout


def run_tool(command):
    """Runs a tool that is measured, with what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done
