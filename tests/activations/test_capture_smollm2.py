import pytest
import torch

from mxstats.activations import capture


@pytest.mark.model
def test_smollm2_has_61_norm_inputs_and_a_massive_first_token(smollm2, license_windows):
    model, _ = smollm2
    with torch.no_grad(), capture(model) as seen:
        hidden = model(
            torch.tensor([license_windows[0][:64]]), output_hidden_states=True
        ).hidden_states
    assert len(seen) == 61
    assert [layer.role for layer in seen].count("pre-attention") == 30
    assert [layer.role for layer in seen].count("pre-mlp") == 30
    assert seen["model.norm"].role == "final"
    for i in range(30):
        assert torch.equal(seen[f"model.layers.{i}.input_layernorm"].rows, hidden[i][0])
    for norm in ("input_layernorm", "post_attention_layernorm"):
        rows = seen[f"model.layers.12.{norm}"].rows
        assert rows[0].abs().max() > 20_000
        # It is the first token alone that is massive.
        assert rows[1:].abs().max() < 2_000
