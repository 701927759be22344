"""The manifest of an activation store: what was captured, from what, and which files hold it."""

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from reprlib import Repr
from typing import Any, TypeGuard

from mxstats.activations.places import Place, missing_place, named, read_bytes
from mxstats.activations.roles import ROLES
from mxstats.errors import StoreError

MANIFEST = "manifest.json"
FORMAT = "mxstats-activations"
FORMAT_VERSION = 2
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
DTYPES = tuple(ITEM_BYTES)

# Control characters, lone surrogates, line and paragraph separators: what a terminal or a message
# of one line does not survive.
_UNPLAIN = {"Cc", "Cs", "Zl", "Zp"}
_LARGEST_COUNT = 2**63 - 1

# Foreign values in messages: escaped, and no longer than a line.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 2


@dataclass(frozen=True)
class LayerInfo:
    """One captured layer.

    Attributes
    ----------
    name
        Qualified name of the module in its model.
    role
        Its part in the decoder, one of :data:`mxstats.activations.roles.ROLES`.
    index
        Number of the decoder layer it lies in, None outside of them.
    hidden_size
        Entries of a row.
    rows
        Rows stored.
    group
        Rows that go together in a shard: those of one token, where a capture wrote its shards
        while the model ran; 1 where shards cut anywhere, as in every store of version 1.
    """

    name: str
    role: str
    index: int | None
    hidden_size: int
    rows: int
    group: int = 1

    @property
    def groups(self) -> int:
        """Groups of rows."""
        return -(-self.rows // self.group)


@dataclass(frozen=True)
class Shard:
    """One file: rows ``first_row`` to ``first_row + rows`` of every layer that has them.

    For a layer with ``group`` above 1, count groups of rows instead.
    """

    file: str
    first_row: int
    rows: int
    sha256: str
    bytes: int

    def rows_of(self, layer: LayerInfo) -> int:
        """How many rows of ``layer`` lie in this shard."""
        left = layer.rows - self.first_row * layer.group
        return max(0, min(self.rows * layer.group, left))


@dataclass(frozen=True)
class StatisticsFile:
    """The file of the streaming statistics."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a store says about itself.

    Attributes
    ----------
    model, revision, text
        What ran, which revision of it if known, and what it read.
    dtype
        ``bfloat16`` or ``float32``, the dtype in the shards.
    tokens
        Number of tokens that have rows here, every BOS included.
    window
        Tokens read at a time, the BOS that begins each window included.
    token_ids_sha256
        SHA-256 of the token ids as little-endian 64-bit integers.
    rows
        Rows of the longest layer, in groups. Norms on whole hidden states have one row a token,
        norms on heads one a token and head.
    layers, shards
        In the model's order, and in the order of their rows.
    versions
        Library name to version, at the time of the capture.
    created
        ISO date.
    tokens_read
        Number of tokens read, of which ``tokens`` are a sample; the statistics are of all.
    statistics
        The file of the statistics, None where there are none, as in every store of version 1.
    """

    model: str
    revision: str | None
    text: str
    dtype: str
    tokens: int
    window: int
    token_ids_sha256: str
    rows: int
    layers: tuple[LayerInfo, ...]
    shards: tuple[Shard, ...]
    versions: Mapping[str, str]
    created: str
    tokens_read: int
    statistics: StatisticsFile | None = None

    def bytes_of_rows(self, shard: Shard) -> int:
        """How many bytes the rows in ``shard`` take, the file's header aside."""
        values = sum(shard.rows_of(layer) * layer.hidden_size for layer in self.layers)
        return values * ITEM_BYTES[self.dtype]

    def to_json(self) -> str:
        """Text of ``manifest.json``."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        body = asdict(self)
        return json.dumps(head | body, indent=1, ensure_ascii=False) + "\n"


def is_plain(text: str) -> bool:
    """Whether ``text`` can stand in a message of one line, with no control character in it."""
    return not any(unicodedata.category(letter) in _UNPLAIN for letter in text)


def read_manifest(folder: Place) -> Manifest:
    """Manifest of the store in ``folder``, checked field by field.

    Raises
    ------
    StoreError
        Missing, unreadable, not JSON, not of a store, of a newer format version, or incomplete.
    """
    path = named(folder, MANIFEST)
    try:
        raw = read_bytes(folder, MANIFEST).decode("utf-8")
    except FileNotFoundError as error:
        what = missing_place(folder)
        raise StoreError(f"{folder} is not an activation store: it {what}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        # Besides JSON's own errors: integers of thousands of digits, and nesting without end.
        raise StoreError(f"{path} is not JSON that can be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of an activation store")
    version = record.get("format_version")
    if not _is_count(version) or version < 1:
        raise StoreError(f"{path} has format_version {_SHORT.repr(version)}, which is no version")
    if version > FORMAT_VERSION:
        raise StoreError(
            f"{path} has format version {version}, written by a newer mxstats; "
            f"this one reads up to {FORMAT_VERSION}"
        )
    return _Reader(path).manifest(record)


class _Reader:
    """Takes the fields of a manifest out of JSON, or says which one is wrong."""

    def __init__(self, path: str):
        self._path = path

    def manifest(self, record: dict[str, Any]) -> Manifest:
        if record["format_version"] == 1:
            record = {**record, "tokens_read": record.get("tokens"), "statistics": None}
            old = record.get("layers")
            if isinstance(old, list):
                with_group = [{**one, "group": 1} if isinstance(one, dict) else one for one in old]
                record["layers"] = with_group
        values = self._fields(record, Manifest, "")
        if values["statistics"] is not None:
            values["statistics"] = self._statistics(values["statistics"])
        values["layers"] = tuple(self._layer(item) for item in self._list(record, "layers"))
        values["shards"] = tuple(self._shard(item) for item in self._list(record, "shards"))
        for name in ("tokens", "window", "rows", "tokens_read"):
            self._need(_is_count(values[name]), name, values[name])
        self._need(values["tokens_read"] >= values["tokens"], "tokens_read", values["tokens_read"])
        for name in ("model", "text", "token_ids_sha256", "created"):
            self._need(_is_text(values[name]), name, values[name])
        revision, versions = values["revision"], values["versions"]
        self._need(revision is None or _is_text(revision), "revision", revision)
        self._need(isinstance(versions, dict), "versions", versions)
        for part in (*versions, *versions.values()):
            self._need(_is_text(part), "versions", part)
        self._need(values["dtype"] in DTYPES, "dtype", values["dtype"])
        manifest = Manifest(**values)
        self._check_names(manifest)
        self._check_rows(manifest)
        return manifest

    def _check_names(self, manifest: Manifest) -> None:
        if not manifest.layers:
            raise StoreError(f"{self._path} has no layers")
        seen: set[str] = set()
        for layer in manifest.layers:
            if layer.name in seen:
                raise StoreError(
                    f"{self._path} has more than one layer called {_SHORT.repr(layer.name)}"
                )
            seen.add(layer.name)

    def _check_rows(self, manifest: Manifest) -> None:
        longest = max(layer.groups for layer in manifest.layers)
        self._need(manifest.rows == longest, "rows", manifest.rows)
        end = 0
        for shard in manifest.shards:
            self._need(shard.first_row == end, "shards.first_row", shard.first_row)
            end += shard.rows
            needed = manifest.bytes_of_rows(shard)
            if shard.bytes < needed:
                raise StoreError(
                    f"{self._path}: shard {shard.file} is to have {shard.bytes} bytes, too few for "
                    f"its rows, which take {needed}"
                )
        if end != manifest.rows:
            raise StoreError(f"{self._path}: the shards hold {end} of {manifest.rows} rows")

    def _layer(self, record: Any) -> LayerInfo:
        values = self._fields(record, LayerInfo, "layers.")
        index = values["index"]
        self._need(_is_text(values["name"]), "layers.name", values["name"])
        self._need(values["role"] in ROLES, "layers.role", values["role"])
        self._need(index is None or _is_count(index), "layers.index", index)
        for name in ("hidden_size", "rows", "group"):
            self._need(_is_count(values[name]), f"layers.{name}", values[name])
        for name in ("hidden_size", "group"):
            self._need(values[name] >= 1, f"layers.{name}", values[name])
        return LayerInfo(**values)

    def _shard(self, record: Any) -> Shard:
        values = self._fields(record, Shard, "shards.")
        self._check_file(values, "shards.")
        for name in ("first_row", "rows"):
            self._need(_is_count(values[name]), f"shards.{name}", values[name])
        return Shard(**values)

    def _statistics(self, record: Any) -> StatisticsFile:
        values = self._fields(record, StatisticsFile, "statistics.")
        self._check_file(values, "statistics.")
        return StatisticsFile(**values)

    def _check_file(self, values: dict[str, Any], prefix: str) -> None:
        file = values["file"]
        # A manifest is data from elsewhere: it may not name files outside its own folder.
        inside = _is_text(file) and not (
            file == "" or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts
        )
        self._need(inside, f"{prefix}file", file)
        self._need(_is_text(values["sha256"]), f"{prefix}sha256", values["sha256"])
        self._need(_is_count(values["bytes"]), f"{prefix}bytes", values["bytes"])

    def _fields(self, record: Any, kind: type, prefix: str) -> dict[str, Any]:
        if not isinstance(record, dict):
            raise StoreError(
                f"{self._path}: {prefix.rstrip('.')} holds {_SHORT.repr(record)}, not an object"
            )
        names = [field.name for field in fields(kind)]
        missing = [prefix + name for name in names if name not in record]
        if missing:
            raise StoreError(f"{self._path} lacks {', '.join(missing)}")
        return {name: record[name] for name in names}

    def _list(self, record: dict[str, Any], name: str) -> list[Any]:
        self._need(isinstance(record[name], list), name, record[name])
        return record[name]

    def _need(self, right: bool, name: str, value: Any) -> None:
        if not right:
            raise StoreError(
                f"{self._path}: {name} is {_SHORT.repr(value)}, which is not possible there"
            )


def _is_count(value: Any) -> TypeGuard[int]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value <= _LARGEST_COUNT


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and is_plain(value)
