"""The activations that come with the package, so that a first look needs no model.

SmolLM2-135M-Instruct reading the first 63 tokens of the GNU GPL, version 3, after a BOS: 61 norm
inputs of 64 rows and 576 entries, bfloat16, 4.5 MB.
"""

from datetime import date
from importlib.resources import files
from pathlib import Path

from mxstats.activations.record import capture_to_store
from mxstats.activations.store import ActivationStore

SAMPLE_TOKENS = 64


def sample_store() -> ActivationStore:
    """The bundled sample; reading it needs neither torch nor a model.

    Raises
    ------
    StoreError
        The installation is damaged.
    """
    return ActivationStore(sample_path())


def sample_path() -> Path:
    """Folder of the bundled sample."""
    return Path(str(files("mxstats.activations"))) / "data" / "smollm2_sample"


def make_sample(
    out: str | Path | None = None, *, overwrite: bool = False, created: date | None = None
) -> ActivationStore:
    """Capture the sample again, into ``out`` or in the place of the bundled one.

    The same machine and library versions give the same bytes, ``created`` aside.
    """
    return capture_to_store(
        sample_path() if out is None else out,
        tokens=SAMPLE_TOKENS,
        overwrite=overwrite,
        created=created,
    )
