"""The virtual environment of the recipe: made on first use, next to the scripts, with pinned packages."""

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"


def enter() -> None:
    """Runs the calling script again inside the environment, unless it runs there already."""
    if Path(sys.prefix) == ENVIRONMENT:
        return
    stamp = ENVIRONMENT / "requirements.txt"
    wanted = (HERE / "requirements.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print("making", ENVIRONMENT, "(about 5 GB: PyTorch)", flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
        stamp.write_text(wanted)
    os.execv(PYTHON, [str(PYTHON), *sys.argv])
