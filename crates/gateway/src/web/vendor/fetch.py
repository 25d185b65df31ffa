#!/usr/bin/env python3
"""Fetches the files of `packages.json` from npm: `fetch.py [FOLDER]`, into this folder unless another is named."""

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def fetch(folder):
    for entry in json.loads((HERE / "packages.json").read_text()):
        with tempfile.TemporaryDirectory() as temporary:
            name = f"{entry['package']}@{entry['version']}"
            pack = ["npm", "pack", "--silent", "--pack-destination", temporary, name]
            subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(temporary).iterdir()
            with tarfile.open(archive) as package:
                for path, file in entry["files"].items():
                    (folder / file).write_bytes(package.extractfile(f"package/{path}").read())


if __name__ == "__main__":
    fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
