"""Fixtures of trained models, for all tests. A model that cannot be had skips its tests, with the reason."""

import packages
import pytest
from divergence import N_REPORTED


def bring(model):
    """The path that a function of `packages` returns."""
    try:
        return model()
    except packages.OutOfReach as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_path():
    return bring(packages.smollm2)


@pytest.fixture(scope="session")
def smollm2(start, smollm2_path):
    """A server with SmolLM2-135M-Instruct as the package has it."""
    with start(smollm2_path, "--max-logprobs", N_REPORTED, "--served-model-name", "smollm2") as server:
        yield server


@pytest.fixture(scope="session")
def gemma3_path():
    return bring(packages.gemma3)


@pytest.fixture(scope="session")
def gemma3(start, gemma3_path):
    """A server with Gemma 3 270M as the package has it."""
    with start(gemma3_path, "--max-logprobs", N_REPORTED, "--served-model-name", "gemma3") as server:
        yield server


@pytest.fixture(scope="session")
def minilm_path():
    return bring(packages.minilm)


@pytest.fixture(scope="session")
def mistral_vocabularies():
    return bring(packages.mistral_vocabularies)
