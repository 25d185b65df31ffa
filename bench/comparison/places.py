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
        return self.cache / "results"

    def tools(self):
        """The folder of the environment's programs, created when absent."""
        programs = self.cache / "venv" / "bin"
        if not all((programs / program).exists() for program in ("cmake", "ninja", "gguf-dump")):
            run([sys.executable, "-m", "venv", self.cache / "venv"])
            run([programs / "python", "-m", "pip", "install", "--quiet", "cmake", "ninja", "gguf", "numpy"])
        return programs

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
