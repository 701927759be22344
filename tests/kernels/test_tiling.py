"""The cut of rows into tiles: it covers every row, wastes little, and changes no result."""

from dataclasses import replace

import pytest
import torch

from mxstats import formats
from mxstats.kernels.mxnorm_plan import plan
from mxstats.kernels.mxnorm_torch import mxnorm_torch
from mxstats.kernels.mxnorm_triton import launch
from mxstats.kernels.spec import cast_spec
from mxstats.kernels.tiling import Config, config

SPEC = cast_spec("MXFP8_E4M3")
SIZES = [*range(1, 300), 576, 1056, 5120, 7168, 8192, 11_008, 14_336, 16_384, 16_385, 65_536]


def planned(hidden_size, spec=SPEC, itemsize=2, blocked=False):
    return plan(spec, hidden_size, itemsize, 2.0, False, False, False, blocked, False, False, True)


@pytest.mark.parametrize("block_size", [1, 16, 24, 32, 100_000])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_cover_rows(block_size, itemsize):
    spec = cast_spec(formats.BlockFormat(formats.E4M3, block_size))
    for hidden_size in SIZES:
        for blocked in (False, True):
            made = planned(hidden_size, spec, itemsize, blocked)
            n_blocks = -(-hidden_size // block_size)
            assert made.tiles * made.config.blocks >= -(-n_blocks // 4) * 4 * blocked
            assert made.tiles * made.config.blocks >= n_blocks
            assert made.width >= min(block_size, hidden_size)
            for size in (made.config.rows, made.config.blocks, made.width, made.config.num_warps):
                assert size & (size - 1) == 0
            assert made.config.rows <= 128
            assert made.config.num_warps <= 16


@pytest.mark.parametrize(
    ("hidden_size", "tiles"),
    [(2048, 1), (4096, 2), (5120, 5), (7168, 7), (11_008, 11), (16_384, 2)],
)
def test_no_lanes_are_wasted_on_the_sizes_of_models(hidden_size, tiles):
    made = planned(hidden_size)
    assert made.tiles == tiles
    # 11008 = 10.75·1024 is the only one that is not a multiple of its tile: 2.3 % are padding.
    assert made.tiles * made.config.blocks * made.width <= hidden_size * 1.03


def test_a_plan_is_made_once():
    assert planned(4096) is planned(4096)
    assert repr(planned(4096)) != repr(planned(4096, blocked=True))
    # Triton keeps what it compiled by this text: nothing that is compiled for may lack in it.
    tuned = replace(planned(4096).config, load_eviction="evict_last")
    assert "evict_last" in repr(replace(planned(4096), config=tuned))


@pytest.mark.parametrize(
    "tuned",
    [
        Config(rows=1, blocks=8, num_warps=1),
        Config(rows=4, blocks=2, num_warps=2),
        Config(rows=8, blocks=1, num_warps=4, load_eviction="", store_cache=".cs"),
    ],
    ids=str,
)
def test_no_choice_changes_a_result(device, tuned):
    x = torch.randn((6, 200), generator=torch.Generator().manual_seed(0)).to(device).bfloat16()
    arguments = (x, x.flip(0), None, SPEC, 3.0, 1.5, 2.0**-17, False, False, 1.0)
    for found, expected in zip(launch(*arguments, tuned), mxnorm_torch(*arguments), strict=True):
        assert torch.equal(found, expected)


def test_configurations_are_values():
    assert config(4096, 32, 2) == config(4096, 32, 2)
