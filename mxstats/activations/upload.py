"""A complete store of this machine, sent to a URL.

Shards and statistics go first, under names that hold their checksum, then the tokens, and
``manifest.json`` last: a reader sees the whole store, or what was there before. A store that is
replaced keeps its files until then. What an upload that broke off has sent is not sent again.
"""

import warnings
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mxstats.activations.manifest import MANIFEST, Manifest, read_manifest
from mxstats.activations.places import RemoteFolder
from mxstats.activations.tokens import TOKENS
from mxstats.errors import StoreError


class UploadError(StoreError):
    """A store is complete on this machine and could not be sent where it was to go."""


def upload(folder: Path, target: RemoteFolder, *, overwrite: bool) -> None:
    """Send the store in ``folder``, which stays there.

    Raises
    ------
    UploadError
        Something could not be sent, or, without ``overwrite``, another writer has put a store
        there in the meantime. The message names ``folder``.
    """
    local = read_manifest(folder)
    sent = _with_checksums_in_names(local)
    old: Manifest | None = None
    try:
        if overwrite and target.size(MANIFEST) is not None:
            old = read_manifest(target)
        for here, there in zip(local.shards, sent.shards, strict=True):
            _send(folder / here.file, target, there.file, here.bytes)
        if local.statistics is not None and sent.statistics is not None:
            there = sent.statistics
            _send(folder / local.statistics.file, target, there.file, there.bytes)
        _finish(target, (folder / TOKENS).read_bytes(), sent, new=not overwrite, replaced=old)
    except (OSError, StoreError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if isinstance(error, FileExistsError):
            reason = "another writer has put a store there in the meantime"
        raise UploadError(
            f"cannot upload to {target}: {reason}; the store is complete in {folder}, and "
            "mxstats.activations.upload_store sends it"
        ) from error
    if old is not None:
        _remove(target, _files(old) - _files(sent))


def _send(local: Path, target: RemoteFolder, file: str, size: int) -> None:
    if target.size(file) == size:
        # Its name says what it holds.
        return
    target.put(local, file)
    found = target.size(file)
    if found != size:
        raise StoreError(f"{file} has {found} bytes there instead of {size}")


def _finish(
    target: RemoteFolder,
    tokens: bytes,
    manifest: Manifest,
    *,
    new: bool,
    replaced: Manifest | None,
) -> None:
    before = None if replaced is None else target.read_bytes(TOKENS)
    # Of two writers the one whose tokens come first goes on.
    target.write_bytes(TOKENS, tokens, new=new)
    try:
        target.write_bytes(MANIFEST, manifest.to_json().encode(), new=new)
    except FileExistsError:
        # Of a writer who replaces what is there: the tokens are not ours any more.
        raise
    except BaseException:
        if before is not None:
            target.write_bytes(TOKENS, before, new=False)
        elif new:
            for file in (MANIFEST, TOKENS):
                if target.size(file) is not None:
                    target.remove(file)
        raise


def _with_checksums_in_names(manifest: Manifest) -> Manifest:
    shards = tuple(
        replace(one, file=f"shards/{_stem(one.file)}-{one.sha256[:12]}.safetensors")
        for one in manifest.shards
    )
    file = manifest.statistics
    if file is not None:
        file = replace(file, file=f"statistics-{file.sha256[:12]}.parquet")
    return replace(manifest, shards=shards, statistics=file)


def _stem(file: str) -> str:
    # The number alone, of a store that was uploaded before.
    return PurePosixPath(file).stem.partition("-")[0]


def _files(manifest: Manifest) -> set[str]:
    files = {shard.file for shard in manifest.shards}
    return files if manifest.statistics is None else files | {manifest.statistics.file}


def _remove(target: RemoteFolder, files: set[str]) -> None:
    for file in sorted(files):
        try:
            target.remove(file)
        except OSError as error:
            warnings.warn(
                f"{target} is replaced, and {file} of the old store could not be removed: {error}",
                stacklevel=2,
            )
