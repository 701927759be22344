"""The text that a model reads during a capture, and its tokens."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from mxstats.errors import MxstatsError

BUNDLED = "gpl-3"


class TextError(MxstatsError):
    """A text that cannot be read, or a tokenizer that cannot begin it."""


def read_text(source: str | Path | None = None) -> str:
    """Text of a file, of all files in a folder, or the bundled text of the GNU GPL, version 3.

    Parameters
    ----------
    source
        None or ``"gpl-3"`` for the bundled licence text (verbatim, English, 35,149 bytes); a
        file; or a folder, whose files are joined in the order of their paths, a newline between
        them. Hidden files and folders are left out.

    Raises
    ------
    TextError
        Missing, empty, or not UTF-8; the message names the file.
    """
    if source is None or source == BUNDLED:
        return _read_file(Path(str(files("mxstats.activations"))) / "data" / "gpl-3.txt")
    path = Path(source)
    if not path.is_dir():
        return _read_file(path)
    inside = sorted(
        found
        for found in path.rglob("*")
        if found.is_file()
        and not any(part.startswith(".") for part in found.relative_to(path).parts)
    )
    if not inside:
        raise TextError(f"the folder {path} has no files to read")
    return "\n".join(_read_file(found) for found in inside)


def text_name(source: str | Path | None = None) -> str:
    """How a manifest calls the text that :func:`read_text` reads: ``gpl-3`` or the path."""
    return BUNDLED if source is None else str(source)


def tokenize(tokenizer: Any, text: str, max_tokens: int | None = None) -> list[int]:
    """Token ids of ``text``, the first being the model's BOS, exactly once.

    Models give their first token a role of its own (its activations are the largest there are),
    so a text without BOS would measure something else; and tokenizers differ in whether they add
    one.

    Parameters
    ----------
    tokenizer
        A transformers tokenizer, or anything with ``bos_token_id`` that is called the same way.
    text
        What to read.
    max_tokens
        Most ids returned, BOS included. None for all.

    Raises
    ------
    ValueError
        ``max_tokens`` below 1.
    TextError
        The tokenizer has no BOS token.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        raise TextError(
            f"{type(tokenizer).__name__} has no BOS token, which the first token has to be"
        )
    # verbose=False: a text longer than the context is cut into windows later, so the tokenizer's
    # warning about it would mislead.
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    start = 0
    while start < len(ids) and ids[start] == bos:
        start += 1
    return [int(token) for token in [bos, *ids[start:]][:max_tokens]]


def _read_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror or error}") from error
    if not text.strip():
        raise TextError(f"{path} is empty")
    return text
