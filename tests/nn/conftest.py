"""One thread for small products, which on several spend their time waiting for one another."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_but_for_a_real_model(request):
    before = torch.get_num_threads()
    if request.node.get_closest_marker("model") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
