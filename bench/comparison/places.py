"""Where the comparison keeps what it makes, and the Python environment whose tools make it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Places:
    """`cache` holds everything that is built or made once; `throng` is the binary, built when absent."""

    cache: Path
    throng: Path | None = None

    @property
    def models(self):
        return self.cache / "models"

    @property
    def results(self):
        return self.cache / "results"

    def tool(self, name, packages):
        """The path of a program of the environment, which gets `packages` when it lacks it."""
        path = self.cache / "venv" / "bin" / name
        if not path.exists():
            self.install(packages)
        return path

    def python_with(self, packages):
        """An interpreter that can import these packages."""
        python = self.cache / "venv" / "bin" / "python"
        imports = "; ".join(f"import {package}" for package in packages)
        if not python.exists() or subprocess.run([python, "-c", imports], stderr=subprocess.DEVNULL).returncode:
            self.install(packages)
        return python

    def install(self, packages):
        venv = self.cache / "venv"
        if not venv.exists():
            run([sys.executable, "-m", "venv", venv])
        run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", *packages])

    def throng_binary(self):
        """The release binary of this checkout, or the one that was asked for."""
        if self.throng:
            return self.throng
        run(["cargo", "build", "--release", "--package", "throng-cli"], cwd=ROOT)
        return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "throng"


def run(command, **how):
    """Runs a step of the preparation and stops the whole comparison when it fails."""
    print("$", *command, file=sys.stderr)
    return subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, **how)
