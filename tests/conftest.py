"""Fixtures that several packages' tests share: the real model and its text."""

import io
from contextlib import redirect_stderr

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items):
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not of_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in of_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def smollm2_and_noise():
    """SmolLM2, its tokenizer, and what loading them wrote to stderr."""
    from mxstats.activations import load_smollm2

    with redirect_stderr(io.StringIO()) as noise:
        model, tokenizer = load_smollm2()
    return model, tokenizer, noise.getvalue()


@pytest.fixture(scope="session")
def smollm2(smollm2_and_noise):
    return smollm2_and_noise[:2]


@pytest.fixture(scope="session")
def license_windows(smollm2):
    """The first 2,044 tokens of the GPL in four windows of 511, each after a BOS."""
    from mxstats.activations import read_text
    from mxstats.activations.record import text_windows

    return text_windows(smollm2[1], read_text(), max_tokens=2048, window=512)
