"""Fetch a MovieLens zip from GroupLens and check it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path

from ivvi.errors import FileError, InputError, nearest

SITE = "https://files.grouplens.org/datasets/movielens"
TIMEOUT = 30.0  # seconds without an answer
# The MD5 that GroupLens publishes; None where the contents change and it is fetched.
CHECKSUMS: Mapping[str, str | None] = {
    "ml-100k": "0e33842e24a9c977be4e0107933c0723",
    "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
    "ml-latest-small": None,
}
_CHUNK = 1 << 20


def download(name: str, folder: str | os.PathLike[str]) -> Path:
    """Download a MovieLens zip into a folder, unless it is there with the right checksum.

    The file gets its final name only when it is complete and its MD5 is the one that GroupLens
    publishes; an existing file with another checksum is replaced.

    Parameters
    ----------
    name
        ``"ml-100k"``, ``"ml-1m"`` or ``"ml-latest-small"``.
    folder
        Where to put ``<name>.zip``; made if it does not exist.

    Returns
    -------
    Path
        The zip, which `ivvi.simulators.ratings.read_ratings` reads as it is.

    Raises
    ------
    InputError
        If there is no such data set.
    FileError
        If the zip cannot be fetched or written, or is not what GroupLens publishes.
    """
    if name not in CHECKSUMS:
        raise InputError(
            f"There is no data set {name!r} to download, "
            f"only {', '.join(CHECKSUMS)}{nearest(name, CHECKSUMS)}"
        )
    target = Path(folder) / f"{name}.zip"
    url = f"{SITE}/{name}.zip"
    expected = CHECKSUMS[name] or _published_checksum(f"{url}.md5", target.name)
    if _is_intact(target, expected):
        return target
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        _fetch(url, part)
        _check(part, expected, url)
        _move(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return target


def _advice(zip_name: str) -> str:
    """Return advice for when a download is not possible."""
    return (
        f"download {zip_name} by hand from https://grouplens.org/datasets/movielens/ and pass "
        f"its path, or leave the path out to use the synthetic ratings"
    )


def _unreachable(url: str, error: Exception, zip_name: str) -> FileError:
    """Return the error with the URL, the reason of the failure, and advice."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    reason = error.reason if type(error) is urllib.error.URLError else error
    return FileError(f"{url} could not be fetched ({reason}); {_advice(zip_name)}")


def _published_checksum(url: str, zip_name: str) -> str:
    """Return the MD5 in the small file that GroupLens keeps beside a zip."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            text = answer.read(4096).decode("ascii", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error, zip_name) from error
    match = re.search(r"\b[0-9a-f]{32}\b", text.lower())
    if match is None:
        raise FileError(f"{url} holds no MD5 checksum; {_advice(zip_name)}")
    return match.group()


def _fetch(url: str, part: Path) -> None:
    """Download a URL into a new file."""
    zip_name = url.rpartition("/")[2]
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("xb")
    except OSError as error:
        raise FileError(
            f"The folder {part.parent} cannot take {zip_name}: {error.strerror}"
        ) from error
    try:
        with file, urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error, zip_name) from error


def _check(part: Path, expected: str, url: str) -> None:
    """Raise an error if the MD5 of a downloaded file is not the published one."""
    digest = _md5(part)
    if digest != expected:
        raise FileError(
            f"What {url} sent has MD5 {digest}, where GroupLens publishes {expected}, and was "
            f"discarded; try again, or {_advice(url.rpartition('/')[2])}"
        )


def _move(part: Path, target: Path) -> None:
    """Give a checked file its final name."""
    try:
        os.replace(part, target)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror}") from error


def _is_intact(path: Path, expected: str) -> bool:
    """Return whether a file exists and has this MD5."""
    try:
        return _md5(path) == expected
    except OSError:
        return False


def _md5(path: Path) -> str:
    """Return the MD5 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
