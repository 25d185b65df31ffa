"""What the tests of other client libraries share: the starter model's address, and libraries that ask no one else."""

import os
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

MODEL = "throng-starter"
EMBEDDER = "bert-cls"


@pytest.fixture(scope="session")
def base_url(server):
    return server.url + "/v1"


@pytest.fixture(scope="session")
def embedder_url(start, tmp_path_factory):
    """The address of a server with an encoder in the place of the starter model."""
    model = Path(__file__).resolve().parents[2] / "crates/model/tests/fixtures" / EMBEDDER
    with start(with_tokenizer(model, tmp_path_factory.mktemp("encoder") / EMBEDDER)) as server:
        yield server.url + "/v1"
