"""Where a store is: a folder of this machine, or a URL that fsspec reads.

A folder is read in place. Of a URL, each file is copied to a temporary folder when it is first
needed, and whole, for its checksum is of the whole; from there on it is read as in a folder. The
copies are gone with the store object that made them.
"""

import errno
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias, cast

from mxstats.errors import StoreError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# A chain too: zip://::s3://bucket/store.zip
_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://", re.IGNORECASE)
_LOCAL = ("file://", "local://")
_URL_IN_PATH = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]", re.IGNORECASE)


def is_url(path: object) -> bool:
    """Whether ``path`` is a string like ``"s3://bucket/store"``."""
    return isinstance(path, str) and _URL.match(path) is not None


class RemoteFolder:
    """A folder that fsspec reads and writes; :func:`place_of` makes it.

    Its methods raise OSError whatever the library of the file system raises, FileNotFoundError
    where there is no such file.
    """

    def __init__(self, url: str):
        # The root itself, memory://, keeps its slashes.
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.filesystem, root = _filesystem(url)
        self.root = root.rstrip("/")
        # Another process may have written since this one last looked.
        self.filesystem.invalidate_cache()
        self._copies: Path | None = None

    @property
    def name(self) -> str:
        """Last part of the URL's path."""
        return self.root.rpartition("/")[2] or "store"

    def copy_of(self, file: str) -> Path:
        """A whole copy of ``file`` on this machine, made once."""
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="mxstats-"))
            weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        path = self._copies / file
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched = path.with_name(f".{path.name}.{get_ident()}")
        try:
            with _os_errors():
                self.filesystem.get_file(self._at(file), str(fetched))
        except OSError as error:
            fetched.unlink(missing_ok=True)
            if error.errno == errno.ENOSPC:
                raise StoreError(
                    f"the copy of {file} of {self} does not fit on the disk of {self._copies}: "
                    "make room, or set TMPDIR to a folder of another disk"
                ) from error
            raise
        return fetched.replace(path)

    def forget(self, file: str | None = None) -> None:
        """Fetch ``file``, or every file, anew when it is next needed."""
        if self._copies is None:
            return
        if file is None:
            for path in self._copies.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            return
        path = self._copies / file
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def read_bytes(self, file: str) -> bytes:
        """What ``file`` holds."""
        with _os_errors():
            return cast("bytes", self.filesystem.cat_file(self._at(file)))

    def is_dir(self) -> bool:
        """Whether there is anything."""
        with _os_errors():
            return bool(self.filesystem.isdir(self.root))

    def entries(self) -> list[str]:
        """Names of files and folders in it, not of what lies deeper."""
        try:
            with _os_errors():
                found = self.filesystem.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        names = {name.rstrip("/").rpartition("/")[2] for name in found if name != self.root}
        return sorted(names - {""})

    def size(self, file: str) -> int | None:
        """Bytes of ``file``, None where there is none."""
        try:
            with _os_errors():
                return self.filesystem.size(self._at(file))
        except FileNotFoundError:
            return None

    def put(self, local: Path, file: str) -> None:
        """Write a file of this machine as ``file``."""
        with _os_errors():
            self.filesystem.put_file(str(local), self._at(file))
            # Listings that the file system keeps do not know of it.
            self.filesystem.invalidate_cache()

    def write_bytes(self, file: str, data: bytes, *, new: bool) -> None:
        """Write ``data`` as ``file``; FileExistsError if ``new`` and there is one."""
        with _os_errors():
            self.filesystem.pipe_file(self._at(file), data, mode="create" if new else "overwrite")
            self.filesystem.invalidate_cache()

    def remove(self, file: str) -> None:
        """Remove ``file``."""
        with _os_errors():
            self.filesystem.rm_file(self._at(file))
            self.filesystem.invalidate_cache()

    def _at(self, file: str) -> str:
        return f"{self.root}/{file}"

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemoteFolder({self.url!r})"


Place: TypeAlias = Path | RemoteFolder


def place_of(path: "str | Path | RemoteFolder") -> Place:
    """The place that ``path`` says; URLs of the local file system are folders.

    Raises
    ------
    StoreError
        A URL of an unknown kind, or of one whose package is not installed.
    """
    if isinstance(path, RemoteFolder):
        return path
    if isinstance(path, str) and is_url(path):
        for protocol in _LOCAL:
            if path.startswith(protocol):
                return Path(path.removeprefix(protocol))
        return RemoteFolder(path)
    return Path(path)


def named(place: Place, file: str) -> str:
    """``file`` of ``place`` as a message is to call it."""
    return str(place / file) if isinstance(place, Path) else f"{place}/{file}"


def read_bytes(place: Place, file: str) -> bytes:
    """What a small file holds, read anew each time."""
    return (place / file).read_bytes() if isinstance(place, Path) else place.read_bytes(file)


@contextmanager
def local_file(place: Place, file: str) -> Iterator[Path]:
    """``file`` as a file of this machine; a copy that is found damaged is not kept."""
    if isinstance(place, Path):
        yield place / file
        return
    try:
        yield place.copy_of(file)
    except StoreError:
        place.forget(file)
        raise


def missing_place(place: Place) -> str:
    """Why there is no manifest at ``place``, to follow "it"."""
    try:
        if place.is_dir():
            return "has no manifest.json"
    except OSError:
        # The file system said that there is no manifest, and why is all that is asked for here.
        return "has no manifest.json"
    if isinstance(place, Path) and _URL_IN_PATH.match(str(place)):
        return "does not exist (a URL has to be a string, for a Path drops one of its slashes)"
    return "does not exist"


def _filesystem(url: str) -> "tuple[AbstractFileSystem, str]":
    from fsspec.core import url_to_fs

    try:
        with _os_errors():
            return url_to_fs(url)
    except ImportError as error:
        raise StoreError(
            f"{url} needs a package that is not installed: {_one_line(error)}"
        ) from error
    except (OSError, TypeError, ValueError) as error:
        raise StoreError(f"{url} cannot be opened: {_one_line(error)}") from error


@contextmanager
def _os_errors() -> Iterator[None]:
    """Errors of a file system's own library, of credentials or the network, as OSError.

    Those libraries have classes of their own, which need not be installed here to be named. What
    is built in (TypeError, KeyError, …) is a fault of a program and passes.
    """
    try:
        yield
    except OSError:
        raise
    except NotImplementedError as error:
        raise OSError(errno.EROFS, "this kind of file system cannot be written") from error
    except Exception as error:
        if type(error).__module__ == "builtins":
            raise
        raise OSError(f"{type(error).__name__}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
