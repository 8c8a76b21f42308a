"""Writing without ever leaving half a file: temporary name first, then one rename.

`checked_output` looks before the work starts, so that a long computation does not
end in "permission denied"; `atomic_file` and `atomic_folder` give a place to write
and move it to its final name only when the block ends without an exception. A saved
folder (`save_folder`) is `NAME.json` plus `NAME.npz`, no pickle, with a checksum over
both, so that `load_folder` can tell a damaged or edited model from a sound one;
`save_file` keeps the same in one file, for state that is written again and again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.errors import FileError

FORMAT = 1
"""Version of the saved folders; a folder of another version is refused."""
Saved = tuple[dict[str, Any], dict[str, np.ndarray]]
"""What can be saved: JSON values, and arrays by name."""
logger = logging.getLogger(__name__)


def checked_output(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Return `path` if something may be written there, or say why not."""
    target = Path(path)
    try:
        if target.exists() and not force:
            raise FileError(f"{target} exists already; choose another name or pass --force")
        parent = target.resolve().parent
        if not parent.is_dir():
            raise FileError(f"{target} cannot be written: {parent} is not a folder that exists")
        # asking the file system is the only honest test of permission (and of long names)
        with tempfile.NamedTemporaryFile(dir=parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block succeeds."""
    target = checked_output(path, force=force).resolve()
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "a device"
        raise FileError(f"{target} is {what}; expected the name of a file")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        yield Path(name)
        _set_default_mode(Path(name), 0o666)
        os.replace(name, target)
        logger.info("wrote %s", target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` when the block succeeds.

    With `force` an existing folder is moved aside first and deleted last, so that at
    every moment the old or the new folder, whole, is on the disk. A file, or a folder
    that we did not write, is not replaced.
    """
    target = checked_output(path, force=force).resolve()
    if target.exists() and not _is_replaceable(target):
        raise FileError(f"{target} is not a folder that ivvi saved; it will not be replaced")
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield folder
        _set_default_mode(folder, 0o777)
        if target.exists():
            _exchange(folder, target)
        else:
            os.replace(folder, target)
        logger.info("wrote %s", target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_json(path: str | os.PathLike[str], value: Any, *, force: bool = False) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are not allowed in it."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with atomic_file(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} is not a JSON object")
    return found


def save_folder(
    path: str | os.PathLike[str],
    kind: str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    force: bool = False,
) -> Path:
    """Save `facts` (JSON) and `arrays` (npz) as a folder of the given kind, atomically."""
    with atomic_folder(path, force=force) as folder:
        np.savez(folder / f"{kind}.npz", allow_pickle=False, **dict(arrays))
        document = {"kind": kind, "format": FORMAT, **facts}
        document["checksum"] = _checksum(document, folder / f"{kind}.npz")
        text = json.dumps(document, indent=2, allow_nan=False)
        (folder / f"{kind}.json").write_text(text + "\n", encoding="utf-8")
    return Path(path)


def load_folder(path: str | os.PathLike[str], kind: str) -> Saved:
    """Read what `save_folder` wrote, refusing other versions and altered files."""
    folder = Path(path)
    described, stored = folder / f"{kind}.json", folder / f"{kind}.npz"
    if not described.is_file() or not stored.is_file():
        raise FileError(f"{folder} is not a saved {kind}; expected {kind}.json and {kind}.npz")
    try:
        document = json.loads(described.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{described} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise FileError(f"{described} does not describe a {kind}")
    if document.get("format") != FORMAT:
        found = document.get("format")
        raise FileError(f"{folder} has format {found!r}; this version of ivvi reads {FORMAT}")
    try:
        sound = document.pop("checksum", None) == _checksum(document, stored)
    except (OSError, ValueError):  # a NaN, which we do not write
        sound = False
    if not sound:
        raise FileError(f"{folder} was altered or damaged after it was saved (checksum differs)")
    try:
        with np.load(stored, allow_pickle=False) as arrays:
            return document, dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise FileError(f"{stored} cannot be read: {error}") from error


def save_file(
    path: str | os.PathLike[str],
    kind: str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Save `facts` and `arrays` as one npz file, replacing what is there in one step.

    The temporary name is always the same, so that a program that is killed while it
    writes, again and again, leaves one such file at most; `remove_file` takes both.
    """
    target, temporary = Path(path), _temporary_name(path)
    document = json.dumps({"kind": kind, "format": FORMAT, **facts}, allow_nan=False)
    described = np.frombuffer(document.encode(), np.uint8)
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{kind: described}, **dict(arrays))
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror or error}") from error


def load_file(path: str | os.PathLike[str], kind: str) -> Saved:
    """Read what `save_file` wrote; zip's own checksums tell a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        document = json.loads(arrays.pop(kind).tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FileError(f"{path} is not a {kind} of ivvi, or it is damaged") from error
    if document.get("format") != FORMAT:
        found = document.get("format")
        raise FileError(f"{path} has format {found!r}; this version of ivvi reads {FORMAT}")
    return document, arrays


def remove_file(path: str | os.PathLike[str]) -> None:
    """Remove what `save_file` wrote, and what a killed one left."""
    for file in (Path(path), _temporary_name(path)):
        file.unlink(missing_ok=True)


def nest(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put `name` and a dot before the name of each array."""
    return {f"{name}.{key}": value for key, value in arrays.items()}


def unnest(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that `nest` has put under `name`."""
    lead = f"{name}."
    return {key[len(lead) :]: value for key, value in arrays.items() if key.startswith(lead)}


def as_tuples(value: Any) -> Any:
    """Return lists, and lists in lists, as the tuples that they were before JSON."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error


def _temporary_name(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_name(f".{Path(path).name}.partial")


def _checksum(document: Mapping[str, Any], arrays: Path) -> str:
    canonical = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    return hashlib.sha256(canonical + arrays.read_bytes()).hexdigest()


def _exchange(folder: Path, target: Path) -> None:
    """Put `folder` in the place of the folder `target`, or leave that where it was."""
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        os.replace(target, aside / target.name)
        os.replace(folder, target)
    except BaseException:
        if not target.exists():
            os.replace(aside / target.name, target)
        raise
    finally:
        if target.exists():
            shutil.rmtree(aside)


def _is_replaceable(target: Path) -> bool:
    """Whether the folder holds what `save_folder` writes, KIND.json and KIND.npz, or nothing."""
    if not target.is_dir():
        return False
    names = sorted(file.name for file in target.iterdir())
    kind = names[0].removesuffix(".json") if names else ""
    return names in ([], [f"{kind}.json", f"{kind}.npz"])


def _set_default_mode(path: Path, mode: int) -> None:
    """Give a temporary file (made 0600) the permissions of an ordinarily created one."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)
