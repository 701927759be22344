"""Reading an activation store: a manifest, shards of rows, and the tokens, in one folder.

    manifest.json              model, text, layers, shards with their checksums, versions
    shards/00000.safetensors   rows 0 to 4095 of every layer, bfloat16 or float32
    tokens.parquet             row, token_id, text, position, window, token
    statistics.parquet         layer, kind, index, quantity, value: of every token read

Reading is lazy, one layer of one shard at a time, and needs no torch.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import LayerInfo, Manifest, Shard, read_manifest
from mxstats.activations.places import Place, place_of
from mxstats.activations.shards import check_shard, read_rows
from mxstats.activations.statistics import Statistics
from mxstats.activations.statistics_table import from_table, read_statistics
from mxstats.activations.tokens import TOKENS, read_tokens
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd


class ActivationStore:
    """Activations on disk, read when asked for.

    Parameters
    ----------
    path
        Folder of the store, or a URL as fsspec takes it (``"s3://bucket/store"``, a string). Its
        manifest is read at once, nothing else is. A file of a URL is copied to this machine, under
        ``TMPDIR``, when it is first needed, so the first layer brings all shards; the copies are
        removed with this object.

    Attributes
    ----------
    path : pathlib.Path or str
        The folder, or the URL.

    Raises
    ------
    StoreError
        The folder is missing, or its manifest is missing, foreign, damaged or of a newer version;
        a URL of an unknown kind, or whose package (for example s3fs) is not installed.
    """

    def __init__(self, path: str | Path):
        self.place: Place = place_of(path)
        self.path: Path | str = self.place if isinstance(self.place, Path) else self.place.url
        self.manifest: Manifest = read_manifest(self.place)

    @property
    def layers(self) -> list[LayerInfo]:
        """The layers, in the model's order."""
        return list(self.manifest.layers)

    def layer(self, name: str) -> LayerInfo:
        """The layer called ``name``.

        Raises
        ------
        StoreError
            There is none; the message lists names that come close.
        """
        found = self._by_name.get(name)
        if found is None:
            close = get_close_matches(name, self._by_name, n=3, cutoff=0.5)
            known = f"close to it: {', '.join(close)}" if close else f"first: {self._first_names()}"
            raise StoreError(
                f"no layer {name!r} among the {len(self._by_name)} of {self.path}; {known}"
            )
        return found

    def rows(self, layer_name: str, *, shards: Iterable[int] | None = None) -> NDArray[np.float32]:
        """Rows of a layer, ``[rows, hidden_size]``, float32 (bfloat16 is widened exactly).

        Parameters
        ----------
        layer_name
            Qualified name, as in :attr:`layers`.
        shards
            Numbers of the shards to read, None for all: what is left of a store of which one
            shard is damaged is still readable.

        Raises
        ------
        StoreError
            Unknown layer or shard; a shard that is missing, truncated or altered. A shard's
            checksum is compared the first time that a process opens it.
        """
        layer = self.layer(layer_name)
        chosen = [self._shard(number) for number in self._numbers(shards)]
        chosen = [shard for shard in chosen if shard.rows_of(layer)]
        # Before there is an array for them: rows beyond what the files hold are only a claim.
        for shard in chosen:
            check_shard(self.place, shard)
        out = np.empty((sum(s.rows_of(layer) for s in chosen), layer.hidden_size), np.float32)
        start = 0
        for shard in chosen:
            end = start + shard.rows_of(layer)
            out[start:end] = read_rows(self.place, shard, layer, self.manifest.dtype)
            start = end
        return out

    def tokens(self) -> "pd.DataFrame":
        """The tokens, one a row, in the order in which the model read them.

        Columns ``row``, ``token_id``, ``text`` (the token alone, decoded; a token that is only
        part of a character shows as U+FFFD), ``position`` (place in its window, 0 for its BOS),
        ``window`` (number of the window) and ``token`` (place in the whole reading, of which the
        rows may be a sample). Layers with one row a token have their rows in this order; those on
        heads have as many consecutive rows a token as there are heads.

        Raises
        ------
        StoreError
            Missing, damaged, or not the tokens that the manifest has the hash of.
        """
        return read_tokens(self.place, self.manifest.token_ids_sha256)

    def statistics(self, layers: Iterable[str] | None = None) -> "pd.DataFrame":
        """Streaming statistics of every token read, kept or not, as a tidy table.

        :mod:`mxstats.activations.statistics_table` lists its lines.

        Parameters
        ----------
        layers
            Names of the layers to read, None for all.

        Raises
        ------
        StoreError
            The store has none (version 1, or a capture without); unknown layer; missing or
            damaged file.
        """
        if self.manifest.statistics is None:
            raise StoreError(f"{self.path} has no statistics; capture it again to have them")
        names = None if layers is None else [self.layer(name).name for name in layers]
        return read_statistics(self.place, self.manifest.statistics, names)

    def layer_statistics(self, name: str) -> Statistics:
        """State of the statistics of one layer, to merge or update; needs torch."""
        return from_table(self.statistics([name]), name)

    def verify(self) -> None:
        """Read every file and compare it with the manifest.

        Raises
        ------
        StoreError
            Something is wrong; the message has every fault, one after the other.
        """
        faults: list[str] = []
        if not isinstance(self.place, Path):
            self.place.forget()
        for shard in self.manifest.shards:
            try:
                check_shard(self.place, shard, again=True)
                for layer in self.manifest.layers:
                    if shard.rows_of(layer):
                        read_rows(self.place, shard, layer, self.manifest.dtype)
            except StoreError as error:
                faults.append(str(error))
        try:
            found = len(self.tokens())
            if found != self.manifest.tokens:
                faults.append(f"{TOKENS} has {found} tokens instead of {self.manifest.tokens}")
        except StoreError as error:
            faults.append(str(error))
        if self.manifest.statistics is not None:
            try:
                self.statistics()
            except StoreError as error:
                faults.append(str(error))
        if faults:
            raise StoreError("; ".join(faults))

    @cached_property
    def _by_name(self) -> dict[str, LayerInfo]:
        return {layer.name: layer for layer in self.manifest.layers}

    def _first_names(self) -> str:
        return ", ".join(list(self._by_name)[:3])

    def _numbers(self, shards: Iterable[int] | None) -> list[int]:
        return list(range(len(self.manifest.shards)) if shards is None else shards)

    def _shard(self, number: int) -> Shard:
        count = len(self.manifest.shards)
        if not 0 <= number < count:
            raise StoreError(f"no shard {number} in {self.path}, which has {count}")
        return self.manifest.shards[number]

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"ActivationStore({str(self.path)!r}: {about.model}, {len(about.layers)} layers, "
            f"{about.tokens} tokens, {about.dtype})"
        )
