"""Windows that a model writes, against its probabilities without kept keys and values."""

import pytest
import torch

from mxstats.activations.own_text import write_windows
from tests.nn.tiny_models import tiny_llama


def test_a_sure_model_writes_what_it_is_sure_of():
    model = tiny_llama().eval()
    with torch.no_grad():
        # Logits a thousand times as large: the next token is the likeliest but for ties.
        model.lm_head.weight.mul_(1000.0)
        written = write_windows(model, bos=1, windows=2, length=12)
        wanted = torch.tensor([[1]])
        for _ in range(11):
            likeliest = model(input_ids=wanted).logits[:, -1:].argmax(-1)
            wanted = torch.cat([wanted, likeliest], 1)
    assert written == wanted.tolist() * 2


def test_tokens_come_as_often_as_they_are_probable():
    model = tiny_llama().eval()
    count = 4000
    second = torch.tensor(write_windows(model, bos=1, windows=count, length=2))[:, 1]
    with torch.no_grad():
        chances = model(input_ids=torch.tensor([[1]])).logits[0, -1].double().softmax(-1)
    seen = torch.bincount(second, minlength=len(chances)).double()
    chi_square = ((seen - count * chances) ** 2 / (count * chances)).sum()
    # Of its own mean, the degrees of freedom, and standard deviation, √ of twice them; 5 of them.
    freedom = len(chances) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_the_seed_decides():
    model = tiny_llama().eval()
    texts = [write_windows(model, bos=1, windows=3, length=6, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert [len(window) for window in texts[0]] == [6, 6, 6]
    assert all(window[0] == 1 for window in texts[0])
    assert write_windows(model, bos=1, windows=0, length=6) == []
    assert write_windows(model, bos=1, windows=1, length=1) == [[1]]


@pytest.mark.parametrize(("name", "value"), [("windows", -1), ("length", 0)])
def test_bad_counts_are_named(name, value):
    given = {"bos": 1, "windows": 1, "length": 4} | {name: value}
    with pytest.raises(ValueError, match=f"{name}={value}: must be at least"):
        write_windows(tiny_llama(), **given)
