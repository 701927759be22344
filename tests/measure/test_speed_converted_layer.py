"""The layer of the recorded run: its variants on a small layer, and the grouping of kernels."""

import pytest
import torch

from mxstats.measure.speed.converted_layer import VARIANTS, group_of, layer_of

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("_mxnorm_kernel", "kernels of mxstats"),
        ("_kernel", "kernels of mxstats"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("void cutlass::device_kernel<flash::enable_sm90>", "attention"),
        ("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("triton_poi_fused__to_copy_mul_4", "dequantising and elementwise"),
        ("void at::native::elementwise_kernel<128, 4>", "dequantising and elementwise"),
    ],
)
def test_a_kernel_has_a_group(kernel, group):
    assert group_of(kernel) == group


def test_variants_have_the_same_parameters_and_nearly_the_same_output():
    x = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    layers = {name: layer_of(name, "cpu", sizes=SMALL) for name in VARIANTS}
    state = layers["bf16"].state_dict()
    outputs = {}
    for name, layer in layers.items():
        assert layer.state_dict().keys() == state.keys()
        assert all(torch.equal(layer.state_dict()[key], state[key]) for key in state)
        outputs[name] = layer(x).float()
    expected = outputs.pop("bf16")
    for out in outputs.values():
        # Branches are small at initialisation (weights of 0.02): what differs is a share of them.
        assert (out - expected).norm() < 0.05 * expected.norm()
        assert not torch.equal(out, expected)
