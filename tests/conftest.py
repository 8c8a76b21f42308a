"""What the tests share: the options --all and --slow, a Hypothesis profile, data, simulators.

Programs that tests compile are kept in .pytest_cache, for all workers and for the next run. Most
run for a moment only, so the compiler does not optimise them: half of the time of tests that plan.
Matrices are small, and the workers share the cores: more threads of BLAS would wait for each other.
"""

import os
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # is read when NumPy is loaded

import numpy as np
import pytest
from hypothesis import settings

from ivvi._io.program_cache import keep_programs

if "IVVI_CACHE" not in os.environ:
    os.environ["IVVI_CACHE"] = str(Path(__file__).parents[1] / ".pytest_cache" / "xla")
quick = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # an unknown flag would end the process
    quick += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", quick)
give_programs = keep_programs()

OPTION = {"thorough": "--all", "slow": "--slow"}
settings.register_profile("ivvi", deadline=None, derandomize=True, database=None, max_examples=30)
settings.register_profile("thorough", deadline=None, database=None, max_examples=1000)
settings.load_profile("ivvi")  # pytest --hypothesis-profile thorough takes the other


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the tests marked thorough too")
    parser.addoption("--fuzz", action="store_true", help="run tests/fuzz alone, for an hour")
    parser.addoption("--cases", type=int, default=0, help="with --fuzz: new cases of each test")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that only repeat with more sizes, seeds or pages, unless asked.

    Pages take longest and come first, so that no process is left with them at the end.
    """
    items.sort(key=lambda item: item.path.name != "test_documents.py")
    if config.getoption("--fuzz"):
        others = [item for item in items if item.path.parent.name != "fuzz"]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.path.parent.name == "fuzz"]
    chosen = [mark for mark in ("thorough", "slow") if not config.getoption(OPTION[mark])]
    for item in items:
        for mark in chosen:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: run with {OPTION[mark]}"))


def pytest_terminal_summary(terminalreporter):
    """Say how many cases the fuzzer has tried."""
    ended = [r for name in ("passed", "failed") for r in terminalreporter.stats.get(name, ())]
    counted = [n for r in ended for word, n in r.user_properties if word == "cases"]
    if counted:
        terminalreporter.write_line(f"fuzz cases: {sum(counted):,}")


def pytest_unconfigure():
    if give_programs is not None:
        give_programs()


@pytest.fixture(scope="session")
def names_of():
    """Turn a width into column names: names_of("x", 2) is ("x0", "x1")."""
    return lambda letter, width: tuple(f"{letter}{i}" for i in range(width))


@pytest.fixture(scope="session")
def roles_of(names_of):
    """Return the roles of columns x0.., a0.., z0.. and y0.. (the next state)."""
    from ivvi.logs import Roles

    def build(d_x, d_a, d_z, d_y):
        parts = zip("xazy", (d_x, d_a, d_z, d_y), strict=True)
        return Roles(*(names_of(letter, width) for letter, width in parts), *[None] * 4)

    return build


@pytest.fixture(scope="session")
def moments_of(roles_of):
    """Return the moments of arrays x, a, z, y; no reader looks at them on the way."""
    from ivvi.features import parse_features
    from ivvi.features.design import Design
    from ivvi.logs import Batch
    from ivvi.moments import Moments

    def build(x, a, z, y, weight=None, episode=None, *, features="linear"):
        phi, psi = parse_features(features) if isinstance(features, str) else features
        roles = roles_of(*(part.shape[1] for part in (x, a, z, y)))
        design = Design.build(phi.fitted(x, a), psi.fitted(x, z), roles)
        batch = Batch(x, a, z, y, weight, episode)
        return Moments.of_batch(design, batch, episodes=episode is not None)

    return build


@pytest.fixture(scope="session")
def log_of(names_of):
    """Return a log with next-state columns y0.. from arrays; a state of width 0 is left out."""
    from ivvi import read_logs

    def build(x, a, z, y, weight=None, **settings):
        columns = {}
        for letter, part in zip("xazy", (x, a, z, y), strict=True):
            columns |= dict(zip(names_of(letter, part.shape[1]), part.T.copy(), strict=True))
        if weight is not None:
            columns["w"] = weight
            settings["weight"] = "w"
        state = "x*" if x.shape[1] else ()
        return read_logs(
            columns, state=state, action="a*", instrument="z*", next_state="y*", **settings
        )

    return build


@pytest.fixture(scope="session")
def confounded():
    """Draw x, a, z, y: a confounder moves actions and outputs, the instruments the actions.

    Well conditioned whatever the seed: the instruments reach the actions through a matrix
    with singular values between 1/2 and 2.
    """

    def draw(seed, n=300, d_x=2, d_a=1, d_z=2, d_y=2, *, effect=1.0):
        rng = np.random.default_rng(seed)
        x, z = rng.normal(size=(n, d_x)), rng.normal(size=(n, d_z))
        e = rng.normal(size=(n, d_y))
        size = np.diag(rng.uniform(0.5, 2, max(d_a, d_z)))[:d_a, :d_z]
        reach = rotation(rng, d_a) @ size @ rotation(rng, d_z)
        a = effect * z @ reach.T + 0.3 * x @ rng.normal(size=(d_x, d_a)) + rng.normal(size=(n, d_a))
        a += e @ rng.normal(size=(d_y, d_a))
        y = 1 + x @ rng.normal(size=(d_x, d_y)) + a @ rng.normal(size=(d_a, d_y)) + e
        return x, a, z, y

    def rotation(rng, k):
        return np.linalg.qr(rng.normal(size=(k, k)))[0]

    return draw


@pytest.fixture(scope="session")
def linear_model(names_of):
    """Return x' = c + F x + B a + e with d_x states and d_a actions."""
    from ivvi import Dynamics, linear

    def build(d_x=2, d_a=2, seed=0, radius=0.8, **others):
        rng = np.random.default_rng(seed)
        F = rng.normal(size=(d_x, d_x))
        F *= radius / np.abs(np.linalg.eigvals(F)).max()
        W = np.column_stack([0.1 * rng.normal(size=d_x), F, rng.normal(size=(d_x, d_a))])
        x, states = names_of("x", d_x), rng.normal(size=(20, d_x))
        noise_cov, bread, a = np.eye(d_x), np.eye(W.shape[1]), names_of("a", d_a)
        return Dynamics(linear(), W, noise_cov, bread, x, a, x, states=states, **others)

    return build


@pytest.fixture(scope="session")
def factors():
    """Return the factors of the synthetic ratings; computing them takes seconds."""
    from ivvi.simulators.catalogue import load_factors

    return load_factors()


@pytest.fixture
def few_episodes(monkeypatch):
    """Let `ivvi.value` simulate a tenth of its steps, for tests that its error does not decide."""
    monkeypatch.setattr("ivvi.evaluation.episode_sampling.POINT_STEPS", 10_000)
    monkeypatch.setattr("ivvi.evaluation.episode_sampling.MANY_STEPS", 600)


@pytest.fixture(scope="session")
def simulator(request):
    """Make each simulator once, so that what is compiled for it is shared."""
    from ivvi import make_env

    @cache
    def make(name, dim, setting):
        wanted = name.startswith("recommender")
        ratings = request.getfixturevalue("factors") if wanted else None
        return make_env(name, dim=dim, setting=setting, ratings=ratings)

    return lambda name, dim=None, setting="I": make(name, dim, setting)


@pytest.fixture(scope="session")
def simulated(simulator):
    """Collect each log once: simulated(name, dim, setting, episodes=, horizon=, seed=)."""

    @lru_cache(maxsize=32)
    def collect(name, dim, setting, episodes, horizon, seed):
        return simulator(name, dim, setting).collect(episodes, horizon, seed)

    def simulate(name, dim=None, setting="I", *, episodes=None, horizon=None, seed=0):
        return collect(name, dim, setting, episodes, horizon, seed)

    return simulate
