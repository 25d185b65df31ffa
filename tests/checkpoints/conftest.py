"""What the tests of quantized checkpoints share: the tiny models that the libraries quantize, in folders that last for the session."""

import os

# Before any library is imported: nothing is asked of a hub, nothing runs on an accelerator.
os.environ.update(
    CUDA_VISIBLE_DEVICES="",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

import pytest
import tiny


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a tiny model in bfloat16 by its name in `tiny.CONFIGS`."""
    folders = {}

    def folder(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("base") / name
            tiny.save(name, folders[name])
        return folders[name]

    return folder
