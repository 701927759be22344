"""What importing costs, and that the theory needs no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import mxstats

HEAVY = ("scipy", "pandas", "matplotlib", "torch", "transformers", "pyarrow", "numpy")
THEORY = sorted(
    ".".join(("mxstats", *path.relative_to(Path(mxstats.__file__).parent).with_suffix("").parts))
    .removesuffix(".__init__")
    for path in (Path(mxstats.__file__).parent / "theory").rglob("*.py")
)  # fmt: skip
# A finder before all others that refuses torch and whatever lies in it.
BLOCK_TORCH = """
import sys
from importlib.abc import MetaPathFinder
class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing_heavy():
    code = f"import mxstats, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]"


def test_listing_the_names_loads_nothing_heavy():
    code = f"import mxstats, sys; dir(mxstats); print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]"


def test_importing_theory_loads_neither_pandas_nor_torch():
    code = "import mxstats.theory, sys; print([m for m in ('pandas', 'matplotlib', 'torch') "
    assert run(code + "if m in sys.modules])") == "[]"


def test_theory_works_without_torch():
    code = BLOCK_TORCH + "import importlib, mxstats, numpy as np\n"
    code += f"for name in {THEORY}: importlib.import_module(name)\n"
    code += (
        "assert abs(mxstats.constant() - 2.389457114757) < 1e-12\n"
        "assert mxstats.rms_error('laplace', p=1).std(128) > 0\n"
        "assert mxstats.output_bounds(hidden_size=100).witness('rms_high').shape == (100,)\n"
        "assert mxstats.constant(np.ones(5000)).stderr < 1e-12\n"
        "print('torch' in sys.modules)"
    )
    assert len(THEORY) > 8
    assert run(code) == "False"


def test_every_public_name_is_listed_and_unknown_ones_are_named():
    assert set(mxstats.__all__) <= set(dir(mxstats))
    with pytest.raises(AttributeError, match="module 'mxstats' has no attribute 'constnat'"):
        mxstats.constnat  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
