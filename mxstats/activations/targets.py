"""Where a store may be written, and how one that is complete gets there: whole, or not at all.

A store is built in a folder beside its place and renamed. For a URL it is built in the working
directory and uploaded (:mod:`mxstats.activations.upload`).
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from uuid import uuid4

from mxstats.activations.manifest import MANIFEST, read_manifest
from mxstats.activations.places import Place, RemoteFolder, place_of
from mxstats.activations.store import ActivationStore
from mxstats.activations.tokens import TOKENS
from mxstats.activations.upload import UploadError, upload
from mxstats.errors import StoreError

_PROBE = ".mxstats-write-"


def check_target(path: str | Path | RemoteFolder, *, overwrite: bool) -> None:
    """Raise StoreError unless a store may be written at ``path``."""
    target = place_of(path)
    _check_writable(target, beside(target).parent)
    if isinstance(target, Path):
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
    elif _check_remote(target):
        return
    if not overwrite:
        raise StoreError(
            f"{target} exists already; overwrite=True replaces it (--overwrite on the command line)"
        )
    if isinstance(target, RemoteFolder) and _broke_off(target.entries()):
        return
    try:
        read_manifest(target)
    except StoreError as error:
        raise StoreError(f"{target} is not replaced, for it is no store: {error}") from error


def beside(target: Place) -> Path:
    """The target; for a URL, the name in the working directory beside which its store is built."""
    if isinstance(target, Path):
        return target
    # Stores of one name in two buckets have their own.
    return Path.cwd() / f"{target.name}-{hashlib.sha256(target.url.encode()).hexdigest()[:8]}"


@contextmanager
def building(target: Place, *, overwrite: bool) -> Iterator[Path]:
    """A folder in which a store is built; the end of the block puts it in its place.

    Nothing stays of it where the block fails. Where an upload does, the store is complete, and
    kept.
    """
    prefix, parent = f".{beside(target).name}-", beside(target).parent
    if isinstance(target, Path):
        with TemporaryDirectory(prefix=prefix, dir=parent) as scratch:
            folder = Path(scratch) / "store"
            folder.mkdir()
            yield folder
            move_into_place(folder, target, Path(scratch) / "replaced", overwrite)
        return
    scratch = Path(mkdtemp(prefix=prefix, dir=parent))
    try:
        folder = scratch / "store"
        folder.mkdir()
        yield folder
        upload(folder, target, overwrite=overwrite)
    except UploadError:
        raise
    except BaseException:
        shutil.rmtree(scratch)
        raise
    shutil.rmtree(scratch)


def put_into_place(folder: Path, target: Place, aside: Path, overwrite: bool) -> None:
    """Make the complete store in ``folder`` the one at ``target``."""
    if isinstance(target, Path):
        move_into_place(folder, target, aside, overwrite)
    else:
        upload(folder, target, overwrite=overwrite)


def move_into_place(folder: Path, target: Path, aside: Path, overwrite: bool) -> None:
    """Rename ``folder`` to ``target``; a store that is there goes ``aside``, or comes back."""
    if overwrite and (target / MANIFEST).exists():
        try:
            target.rename(aside)
            folder.rename(target)
        except BaseException:
            # Ctrl-C too, wherever between the two it comes: what is aside goes with the scratch.
            if aside.exists() and not target.exists():
                aside.rename(target)
            raise
    else:
        # Fails, as it should, if another writer has put a store there in the meantime.
        folder.rename(target)


def check_space(target: Place, needed: int, *, held: int = 0) -> None:
    """Raise StoreError if the disk on which ``target`` is built has not ``needed`` bytes free.

    ``held`` bytes are on that disk already and count as free: those of an unfinished capture.
    """
    folder = beside(target).parent
    free = shutil.disk_usage(folder).free + held
    if needed > free:
        raise StoreError(
            f"{target} takes {gigabytes(needed)} while it is written, and the disk of {folder} "
            f"has {gigabytes(free)} free: read fewer tokens, keep the rows of fewer (keep_rows, "
            "--keep-rows on the command line), or write to another disk"
        )


def upload_store(path: str | Path, url: str, *, overwrite: bool = False) -> ActivationStore:
    """Send the store in the folder ``path`` to ``url``, and open it there; the folder stays.

    Shards that an upload of the same store has sent before it broke off are not sent again.

    Parameters
    ----------
    path
        Folder of the store. Every file is compared with its checksum first.
    url
        As fsspec takes it, for example ``"s3://bucket/store"``.
    overwrite
        Replace a store that is there. It is whole until the new one is.

    Raises
    ------
    StoreError
        The store is damaged, ``url`` is taken or cannot be written, or the upload failed: then
        readers see what was there before.
    ValueError
        ``url`` is none.
    """
    target = place_of(url)
    if isinstance(target, Path):
        raise ValueError(f"url must be like 's3://bucket/store', got {str(url)!r}")
    store = ActivationStore(path)
    if not isinstance(store.place, Path):
        raise ValueError(f"path must be a folder of this machine, got {str(path)!r}")
    check_target(target, overwrite=overwrite)
    store.verify()
    upload(store.place, target, overwrite=overwrite)
    return ActivationStore(url)


def gigabytes(size: int) -> str:
    """``size`` bytes in GB, three digits at least."""
    return f"{size / 1e9:,.3g} GB" if size < 999e9 else f"{size / 1e9:,.0f} GB"


def is_full(error: OSError) -> bool:
    """Whether a disk, or somebody's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _check_writable(target: Place, parent: Path) -> None:
    if not parent.is_dir():
        raise StoreError(f"cannot write {target}: the folder {parent} does not exist")
    if not os.access(parent, os.W_OK | os.X_OK):
        where = "" if isinstance(target, Path) else " (a store for a URL is built there)"
        raise StoreError(f"cannot write {target}: the folder {parent} is not writable{where}")


def _check_remote(target: RemoteFolder) -> bool:
    """Whether nothing is in the way; StoreError if the URL cannot be written at all."""
    probe = f"{_PROBE}{uuid4().hex}"
    try:
        found = target.entries()
        target.write_bytes(probe, b"", new=False)
        target.remove(probe)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    # Shards without tokens are those of an upload that broke off: of other names than new ones.
    return _broke_off(found) and TOKENS not in found


def _broke_off(entries: list[str]) -> bool:
    # Files that begin with a dot are no part of a store.
    ours = ("shards", "statistics-")
    rest = [name for name in entries if not name.startswith((".", *ours))]
    return all(name == TOKENS for name in rest)
