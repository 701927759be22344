"""A file system in memory that fails when told to, as one behind a network does."""

from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class NoCredentialsError(Exception):
    """What a library of a bucket raises: of no class that anybody else knows."""


class Flaky(MemoryFileSystem):
    """``flaky://``; ``fails`` maps a method to a function of (path) that may raise."""

    protocol = "flaky"
    cachable = False
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    fails: ClassVar = {}
    calls: ClassVar = []

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://", 1))

    def _call(self, method, path):
        self.calls.append((method, path.rpartition("/")[2]))
        if method in self.fails:
            self.fails[method](path)

    def cat_file(self, path, **options):
        self._call("cat_file", path)
        return super().cat_file(path, **options)

    def get_file(self, rpath, lpath, **options):
        self._call("get_file", rpath)
        return super().get_file(rpath, lpath, **options)

    def put_file(self, lpath, rpath, **options):
        self._call("put_file", rpath)
        return super().put_file(lpath, rpath, **options)

    def pipe_file(self, path, value, mode="overwrite", **options):
        self._call("pipe_file", path)
        return super().pipe_file(path, value, mode=mode, **options)

    def rm_file(self, path):
        self._call("rm_file", path)
        return super().rm_file(path)


def fresh():
    """An empty one, which works."""
    Flaky.store.clear()
    Flaky.pseudo_dirs[:] = [""]
    Flaky.fails.clear()
    Flaky.calls.clear()
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    return Flaky


def failing(error, part=""):
    """Raise ``error`` for paths with ``part`` in them."""

    def fail(path):
        if part in path:
            raise error

    return fail


def flip_a_bit(system, path):
    """Change one bit near the end of a file."""
    data = bytearray(system.store[path].getvalue())
    data[-3] ^= 4
    put(system, path, bytes(data))


def put(system, path, data):
    """Make ``data`` what a file holds, whatever it held."""
    MemoryFileSystem.pipe_file(system(skip_instance_cache=True), path, data)
