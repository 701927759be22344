"""Kernels run compiled where there is a CUDA device, else in Triton's interpreter."""

import os
from pathlib import Path

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
# Triton reads it when it is first imported.
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    if HAS_CUDA:
        return
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        # What a GPU does in silence, an overflow say, the interpreter's NumPy warns of.
        item.add_marker(
            pytest.mark.filterwarnings(
                "ignore:.* encountered in:RuntimeWarning:triton.runtime.interpreter"
            )
        )


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if HAS_CUDA else "cpu")


@pytest.fixture(params=["triton", "torch"])
def backend(request):
    return request.param
