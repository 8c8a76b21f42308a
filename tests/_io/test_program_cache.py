"""Programs on disk: shared between commands, whole, within a limit, and never in the way."""

import os
import subprocess
import sys
import zlib

import pytest

from ivvi._io.program_cache import ProgramCache, keep_programs
from ivvi.cli import doctor

COMPILE = """
from ivvi._io.program_cache import keep_programs
keep_programs()
import jax, logging
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
print(int(jax.jit(lambda x: x * 3 + 1)(5)), sum("cache_hits" in name for name in hits))
"""


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Return the environment of a user with an empty cache."""
    for name in [name for name in os.environ if name.startswith("JAX_") or name == "IVVI_CACHE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def compiled():
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    result, hits = map(int, done.stdout.split())
    assert result == 16
    return hits


def test_the_next_process_finds_what_one_compiled(alone):
    assert compiled() == 0
    cache = ProgramCache.usual()
    assert cache.folder.is_relative_to(alone / "ivvi" / "xla")
    count = len(cache.programs)
    assert count > 0
    assert cache.size > 0
    assert compiled() == count
    assert len(cache.programs) == count
    assert not list(cache.folder.glob("process-*"))


def test_processes_side_by_side_do_not_meet(alone):
    started = [
        subprocess.Popen([sys.executable, "-c", COMPILE], stdout=-1, stderr=-1) for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (out.split()[0], err) == (b"16", b"")
    assert compiled() == len(ProgramCache.usual().programs)


def test_a_program_that_is_not_whole_is_not_given_away(alone):
    cache = ProgramCache.usual()
    own = cache.open()
    whole = zlib.compress(b"program" * 1000)
    (own / "good-cache").write_bytes(whole)
    (own / "bad-cache").write_bytes(whole[:20])
    cache.close(own)
    assert [path.name for path in cache.programs] == ["good-cache"]
    assert not own.exists()


def test_the_oldest_programs_go_first(alone):
    cache = ProgramCache(alone)
    for age, name in enumerate(("new-cache", "old-cache")):
        (alone / name).write_bytes(b"x" * 100)
        os.utime(alone / name, (1e9 - age, 1e9 - age))
    (alone / "process-killed").mkdir()
    os.utime(alone / "process-killed", (1e9, 1e9))
    cache.prune(150)
    assert [path.name for path in alone.iterdir()] == ["new-cache"]


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_the_cache_can_be_turned_off(alone, monkeypatch, word):
    monkeypatch.setenv("IVVI_CACHE", word)
    assert keep_programs() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_cache_of_the_users_own_stays(alone, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert keep_programs() is None
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_a_folder_that_cannot_be_written_is_no_fault(alone, monkeypatch):
    (alone / "file").write_text("no folder")
    monkeypatch.setenv("IVVI_CACHE", str(alone / "file"))
    assert compiled() == 0


def test_doctor_shows_the_cache(alone, monkeypatch):
    monkeypatch.setattr(doctor, "STEPS", ())
    assert compiled() == 0
    count = len(ProgramCache.usual().programs)
    assert (
        doctor.examine()
        .machine["programs"]
        .startswith(f"{count} compiled, 0 MiB of at most 512 MiB, in {alone}")
    )
    monkeypatch.setenv("IVVI_CACHE", "off")
    assert "IVVI_CACHE=off" in doctor.examine().machine["programs"]
