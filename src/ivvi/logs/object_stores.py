"""Parquet files on object stores and other file systems, by URL, through fsspec."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import Any

from ivvi.errors import FileError, InputError

ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file known by its URL."""

    url: str

    def open(self) -> Any:
        """Open it for reading; its bytes are fetched as they are asked for."""
        import fsspec  # comes with ivvi[dask]

        return fsspec.open(self.url, "rb")

    def absolute(self) -> RemoteFile:
        """Return the file: a URL is the same everywhere."""
        return self

    def __str__(self) -> str:
        return self.url


def find_remote(url: str) -> list[RemoteFile]:
    """Return the Parquet files that a URL, a URL with a glob, or that of a folder names."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f"{url} needs fsspec; pip install 'ivvi[dask]' brings it") from error
    try:
        system, path = url_to_fs(url)
        if glob.has_magic(path):
            found = sorted(system.glob(path))
        else:
            found = sorted(system.find(path)) if system.isdir(path) else [path]
    except (ImportError, OSError, ValueError) as error:  # a protocol without its package
        raise FileError(f"{url} cannot be opened: {error}") from error
    names = [name for name in found if name.endswith(ENDINGS)]
    if not names:
        raise FileError(f"{url} names no Parquet file (*.parquet)")
    return [RemoteFile(system.unstrip_protocol(name)) for name in names]
