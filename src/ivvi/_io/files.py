"""Writing without ever leaving half a file: temporary name first, then one rename.

`checked_output` checks a path before the work starts, so that a long computation does not end in
"permission denied". `atomic_file` and `atomic_folder` give a temporary path, and rename it only
when the block ends without an exception. A folder is replaced in one step, by one run at a time
(`ivvi._io.replacing`). A saved folder (`save_folder`) is `NAME.json` plus `NAME.npz`, no pickle,
with a checksum over both, so that `load_folder` can detect a damaged or edited model. `save_file`
writes the same into one file, for state that is written repeatedly.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from ivvi._io.replacing import (
    clear_up,
    locked,
    put_in_place,
    recover,
    remove_leftovers,
    temporary_prefix,
)
from ivvi._io.signals import temporary
from ivvi.errors import FileError

UNREADABLE = (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile)
"""Errors raised when a damaged npz file is read."""
KEY = "IVVI_KEY"
"""Environment variable with the secret that saved folders are signed with, if it is set."""
FORMAT = 1
"""Version of the saved folders; a folder of another version is refused."""
LARGEST_SUM = 1e306
"""Largest size of a saved number: sums of fourth powers of a log's values stay below it."""
Saved = tuple[dict[str, Any], dict[str, np.ndarray]]
"""The contents of a saved file: JSON values, and arrays by name."""
logger = logging.getLogger(__name__)


def checked_output(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Return `path` if it can be written, or raise an error that says why not."""
    target = Path(path)
    try:
        recover(target)
        if target.exists() and not force:
            raise FileError(
                f"{target} exists already; choose another name or pass force=True (--force)"
            )
        parent = target.resolve().parent
        if not parent.is_dir():
            raise FileError(f"{target} cannot be written: {parent} is not an existing folder")
        # only trying shows whether the file system permits it (and the length of the name)
        with tempfile.NamedTemporaryFile(dir=parent, prefix=temporary_prefix(target)):
            pass
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{str(target)!r} is not a valid file name: {error}") from error
    return target


def checked_file(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Return `path` if a file can be written there, or raise an error that says why not."""
    target = checked_output(path, force=force)
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device"
        raise FileError(f"{target.resolve()} is {kind}; expected the name of a file")
    return target


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block succeeds."""
    target = checked_file(path, force=force).resolve()
    remove_leftovers(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=temporary_prefix(target))
    os.close(handle)
    try:
        with temporary(Path(name)):
            yield Path(name)
            _set_default_mode(Path(name), 0o666)
            os.replace(name, target)
        logger.info("wrote %s", target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str], *, force: bool = False, replaces: str | None = None
) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` when the block succeeds.

    With `force` an existing folder is replaced in one step, so that at every moment either the old
    or the new folder is complete. With `replaces` it is replaced only if it still is the version
    (`load_version`) that was read. A file, or a folder not written by ivvi, is never replaced.
    """
    with locked(checked_output(path, force=force)):
        target = checked_output(path, force=force).resolve()  # again, after the wait
        if target.exists() and not _is_replaceable(target):
            raise FileError(f"{target} is not a folder that ivvi saved; it will not be replaced")
        remove_leftovers(target)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=temporary_prefix(target)))
        try:
            with temporary(folder):
                yield folder
                _set_default_mode(folder, 0o777)
                if target.exists():
                    put_in_place(folder, target, lambda old: _check_version(old, target, replaces))
                else:
                    os.replace(folder, target)
            logger.info("wrote %s", target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def filled_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder; move its entries into `path` when the block succeeds.

    An existing folder keeps its other entries; entries of the same names are replaced.
    """
    with locked(checked_output(path, force=True)):
        target = Path(path).resolve()
        remove_leftovers(target)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=temporary_prefix(target)))
        try:
            with temporary(folder):
                yield folder
                _set_default_mode(folder, 0o777)
                if target.exists():
                    for entry in sorted(folder.iterdir()):
                        _put_into(entry, target / entry.name)
                    folder.rmdir()
                else:
                    os.replace(folder, target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _put_into(entry: Path, target: Path) -> None:
    if entry.is_dir() and target.is_dir():
        put_in_place(entry, target)
    else:
        os.replace(entry, target)


def write_json(path: str | os.PathLike[str], value: Any, *, force: bool = False) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are not allowed in it."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with atomic_file(path, force=force) as file:
        file.write_text(text, encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    try:
        check_regular(path)
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise FileError(f"{path} is not a JSON object")
    return document


def save_folder(
    path: str | os.PathLike[str],
    kind: str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    force: bool = False,
    replaces: str | None = None,
) -> Path:
    """Save `facts` (JSON) and `arrays` (npz) as a folder of the given kind, atomically.

    With `force` it replaces an existing folder; with `replaces` only that version of it.
    """
    with atomic_folder(path, force=force, replaces=replaces) as folder:
        np.savez(folder / f"{kind}.npz", allow_pickle=False, **dict(arrays))
        document = {"kind": kind, "format": FORMAT, **facts}
        document["checksum"] = _checksum(document, folder / f"{kind}.npz")
        if key := os.environ.get(KEY):
            document["signature"] = _signature(key, document["checksum"])
        text = json.dumps(document, indent=2, allow_nan=False)
        (folder / f"{kind}.json").write_text(text + "\n", encoding="utf-8")
    return Path(path)


def load_folder(path: str | os.PathLike[str], kind: str) -> Saved:
    """Return what `save_folder` wrote; raise an error for other versions and altered files."""
    return load_version(path, kind)[0]


def load_version(path: str | os.PathLike[str], kind: str) -> tuple[Saved, str]:
    """Read a saved folder once; also return the checksum that identifies this version."""
    folder = Path(path)
    recover(folder)
    while True:
        text, stored = _read_pair(folder, kind)
        document = _parsed(text, folder, kind)
        signature = document.pop("signature", None)
        checksum = document.get("checksum")
        try:
            sound = document.pop("checksum", None) == _checksum(document, stored)
        except ValueError:  # a NaN, which ivvi does not write
            sound = False
        if sound:
            break
        if _read_pair(folder, kind)[0] == text:  # it was not replaced between reading the two files
            raise FileError(
                f"{folder} was altered or damaged after it was saved (checksum differs)"
            )
    _check_signature(folder, signature, str(checksum))
    clear_up(folder)
    try:
        arrays = _read_arrays(io.BytesIO(stored))
    except UNREADABLE as error:
        raise FileError(f"{folder / f'{kind}.npz'} cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and (np.abs(array[np.isfinite(array)]) > LARGEST_SUM).any():
            raise FileError(
                f"{folder} is not a valid {kind}: {name} holds numbers above {LARGEST_SUM:g}"
            )
    return (document, arrays), str(checksum)


def _signature(key: str, checksum: str) -> str:
    return hmac.new(key.encode(), checksum.encode(), hashlib.sha256).hexdigest()


def _check_signature(folder: Path, signature: Any, checksum: str) -> None:
    """Raise an error for a folder that is not signed with the key, if there is one."""
    if not (key := os.environ.get(KEY)):
        return
    if signature is None:
        raise FileError(
            f"{folder} is not signed, and {KEY} is set: save it again with {KEY} set, or unset it"
        )
    if not hmac.compare_digest(str(signature).encode(), _signature(key, checksum).encode()):
        raise FileError(f"{folder} is signed with a different key than {KEY}, or was altered")


def _read_pair(folder: Path, kind: str) -> tuple[bytes, bytes]:
    """Return the bytes of KIND.json and KIND.npz."""
    files = folder / f"{kind}.json", folder / f"{kind}.npz"
    if not all(file.is_file() for file in files):
        raise FileError(f"{folder} is not a saved {kind}; expected {kind}.json and {kind}.npz")
    try:
        return files[0].read_bytes(), files[1].read_bytes()
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {error.strerror or error}") from error


def _parsed(text: bytes, folder: Path, kind: str) -> dict[str, Any]:
    """Return the JSON of a folder of this kind and format."""
    described = folder / f"{kind}.json"
    try:
        document = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FileError(f"{described} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise FileError(f"{described} does not describe a {kind}")
    if document.get("format") != FORMAT:
        format_found = document.get("format")
        raise FileError(
            f"{folder} has format {format_found!r}; this version of ivvi reads {FORMAT}"
        )
    return document


def save_file(
    path: str | os.PathLike[str],
    kind: str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Save `facts` and `arrays` as one npz file, replacing an existing one in one step.

    The temporary name is always the same, so that a program that is repeatedly killed while it
    writes leaves at most one such file; `remove_file` removes both.
    """
    target, partial = Path(path), _temporary_name(path)
    document = json.dumps({"kind": kind, "format": FORMAT, **facts}, allow_nan=False)
    described = np.frombuffer(document.encode(), np.uint8)
    try:
        with temporary(partial):
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **{kind: described}, **dict(arrays))
            os.replace(partial, target)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror or error}") from error


def load_file(path: str | os.PathLike[str], kind: str) -> Saved:
    """Return what `save_file` wrote; zip's own checksums reveal a damaged file."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            arrays = _read_arrays(file)
        document = json.loads(arrays.pop(kind).tobytes())
    except (*UNREADABLE, KeyError, RecursionError) as error:
        raise FileError(f"{path} is not a {kind} file of ivvi, or it is damaged") from error
    if document.get("format") != FORMAT:
        format_found = document.get("format")
        raise FileError(f"{path} has format {format_found!r}; this version of ivvi reads {FORMAT}")
    return document, arrays


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise an error for a pipe or a device, which may never end."""
    if Path(path).exists() and not Path(path).is_file():
        raise FileError(f"{path} is not a regular file")


def _read_arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Return the members of an npz file, and raise an error if one is compressed.

    ivvi writes uncompressed files, in which no member can be larger than the file.
    """
    with zipfile.ZipFile(file) as stored:
        for member in stored.infolist():
            if (
                member.compress_type != zipfile.ZIP_STORED
                or member.file_size != member.compress_size
            ):
                raise ValueError(f"its member {member.filename!r} is compressed")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def remove_file(path: str | os.PathLike[str]) -> None:
    """Remove the file that `save_file` wrote, and the temporary file of a killed run."""
    for file in (Path(path), _temporary_name(path)):
        file.unlink(missing_ok=True)


def nest(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with `name` and a dot before each name."""
    return {f"{name}.{key}": value for key, value in arrays.items()}


def unnest(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that `nest` put under `name`."""
    lead = f"{name}."
    return {key[len(lead) :]: value for key, value in arrays.items() if key.startswith(lead)}


def as_tuples(value: Any) -> Any:
    """Return lists, also nested ones, as the tuples that they were before JSON."""
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


def _checksum(document: Mapping[str, Any], arrays: bytes | Path) -> str:
    """Return the SHA-256 of a document and its arrays, read in pieces."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode())
    if isinstance(arrays, bytes):
        digest.update(arrays)
    else:
        with arrays.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _check_version(folder: Path, target: Path, replaces: str | None) -> None:
    """Raise an error if the folder to be replaced is not the version that was read."""
    if replaces is None:
        return
    (described,) = folder.glob("*.json")
    if read_json(described).get("checksum") != replaces:
        raise FileError(
            f"{target} was replaced by another run in the meantime and is left as that run wrote "
            "it; run this command again"
        )


def _is_replaceable(target: Path) -> bool:
    """Return whether the folder is empty or holds KIND.json and KIND.npz of `save_folder`."""
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
