"""Build the wheel and the sdist, check their contents, install one of them and test it.

``python tools/package.py DIST`` builds into the folder DIST and installs the wheel beside the
libraries of this Python; with ``--clean`` it installs the sdist and its dependencies from the
package index into a new environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1_000_000
DATA = (".parquet", ".csv", ".arrow", ".npz", ".npy", ".zip", ".gz", ".dat", ".h5")
COMMANDS = (
    "ivvi --version",
    "ivvi doctor",
    "ivvi simulate linear --dim 2 --episodes 20 --horizon 50 --out log.parquet",
    "ivvi fit log.parquet --state x* --action a* --instrument z* --out model",
    "ivvi plan model --reward quadratic:weight=1 --action-low -1 --action-high 1 --out policy",
    "ivvi act policy --state 10,10",
)


def build(dist: Path) -> tuple[Path, Path]:
    """Build both; return the wheel and the sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(dist.resolve())]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, sdist


def faults(wheel: Path, sdist: Path) -> list[str]:
    """Return the faults of the contents, in words."""
    with tarfile.open(sdist) as archive:
        files = {member.name: member.size for member in archive if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        inside = {entry.filename: entry.file_size for entry in archive.infolist()}
    problems = [
        f"{name} has {size:,} bytes; expected at most {MOST_BYTES:,}"
        for name, size in (files | inside).items()
        if size > MOST_BYTES
    ]
    problems += [f"{name} is data" for name in files | inside if name.endswith(DATA)]
    if "ivvi/py.typed" not in inside:
        problems.append("the wheel has no ivvi/py.typed")
    problems += [
        f"{name} belongs to no package" for name in files if "/reproduction/results" in name
    ]
    top_level = {name.split("/")[0] for name in inside}
    if len(top_level) != 2:
        problems.append(f"the wheel holds {sorted(top_level)}; expected ivvi and its metadata")
    return problems


def install_beside(wheel: Path, folder: Path) -> dict[str, str]:
    """Install the wheel alone into a folder; return the environment that finds it first."""
    target = folder / "installed"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    path = os.pathsep.join([str(target / "bin"), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(target)}


def install_clean(sdist: Path, folder: Path) -> dict[str, str]:
    """Install the sdist and its dependencies into a new environment."""
    home = folder / "environment"
    venv.create(home, with_pip=True)
    subprocess.run([home / "bin" / "pip", "install", "-q", str(sdist)], check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return environment | {"PATH": os.pathsep.join([str(home / "bin"), os.environ["PATH"]])}


def try_out(environment: dict[str, str], folder: Path) -> None:
    """Run a few commands of the installed package in an empty folder."""
    empty = folder / "empty"
    empty.mkdir()
    for command in COMMANDS:
        done = subprocess.run(
            command.split(), cwd=empty, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{command}: code {done.returncode}\n{done.stdout}{done.stderr}")
        if command == "ivvi doctor":
            first_line = done.stdout.splitlines()[0]
            if str(folder) not in first_line:
                raise SystemExit(f"another installation was found: {first_line}")
            print(first_line)


def main() -> None:
    """Build, check, install, test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--clean", action="store_true")
    asked = parser.parse_args()
    wheel, sdist = build(asked.dist)
    for path in (wheel, sdist):
        print(f"{path}: {path.stat().st_size:,} bytes")
    if wrong := faults(wheel, sdist):
        raise SystemExit("\n".join(wrong))
    with tempfile.TemporaryDirectory(prefix="ivvi-package-") as name:
        folder = Path(name).resolve()
        install = install_clean(sdist, folder) if asked.clean else install_beside(wheel, folder)
        try_out(install, folder)
    print("installed and tested: no faults")


if __name__ == "__main__":
    main()
