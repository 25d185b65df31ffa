"""What the tests of other client libraries share: the starter model's address, and libraries that ask no one else."""

import os

import pytest

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


@pytest.fixture(scope="session")
def base_url(server):
    return server.url + "/v1"
