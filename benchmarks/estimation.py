"""Closed-form estimation against linearmodels, ivmodels, econml and the bare GEMMs.

    python benchmarks/estimation.py [--dims 5,10,20] [--econml PYTHON]

Prints, for each k, the processor time of each tool on the same 80,000 simulated rows
(standard errors included, but for ivmodels), its ratio to ivvi, its memory above the data,
and how far its coefficients are from ivvi's. Every tool runs in a process of its own with
one BLAS thread; memory is the peak of what Python allocates. econml may live in another
environment: give that environment's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

REPEATS = {
    "ivvi": 7,
    "everything": 7,
    "robust": 3,
    "gemm": 7,
    "econml": 3,
    "ivmodels": 1,
    "linearmodels": 1,
}


def prepare_ivvi(x, a, z, y):
    """The rows as a log in memory (an Arrow table), as a data frame is for the others."""
    import ivvi

    names = {"x": x, "a": a, "z": z, "next_x": y}
    return (ivvi.read_logs(names, state="x*", action="a*", instrument="z*", next_state="next_x*"),)


def fit_ivvi(log):
    """Coefficients and standard errors."""
    from ivvi.estimators import Exact
    from ivvi.features.design import Design
    from ivvi.features.feature_map import linear
    from ivvi.moments import compute_moments

    moments, _ = compute_moments(log, Design.build(linear(), linear(), log.roles))
    estimate = Exact().solve(moments)
    return estimate.W, estimate.se


prepare_everything = prepare_robust = prepare_ivvi


def fit_everything(log):
    """All that `ivvi.estimate` does: least squares beside, strength, first stages, tests."""
    import ivvi

    fit = ivvi.estimate(log, se="unadjusted")
    return fit.W, fit.se


def fit_robust(log):
    """The same with robust standard errors and tests: a second pass over the rows."""
    import ivvi

    fit = ivvi.estimate(log, se="robust")
    return fit.W, fit.se


def prepare_gemm(x, a, z, y):
    """phi, psi and y, ready to be multiplied."""
    ones = np.ones((len(x), 1))
    return np.hstack([ones, x, a]), np.hstack([ones, x, z]), y


def fit_gemm(phi, psi, y):
    """The multiplications themselves: A, B, C, D, E[y phi'], E[y y']."""
    products = (psi.T @ phi, psi.T @ psi, y.T @ psi, phi.T @ phi, y.T @ phi, y.T @ y)
    return None, products


def fit_econml(x, a, z, y):
    import warnings

    warnings.simplefilter("ignore")
    from econml.iv.sieve import SieveTSLS
    from sklearn.base import BaseEstimator, TransformerMixin

    class Same(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):
            return self

        def transform(self, X):
            return X

    model = SieveTSLS(
        t_featurizer=Same(), x_featurizer=Same(), z_featurizer=Same(), dt_featurizer=None
    )
    model.fit(y, a, X=x, Z=z)
    return None, None


def fit_ivmodels(x, a, z, y):
    from ivmodels import KClass

    W = []
    for column in y.T:  # its standard errors come with tests of every coefficient: left out
        model = KClass(kappa="tsls", fit_intercept=True).fit(X=a, y=column, Z=z, C=x)
        W.append(np.r_[model.intercept_, model.coef_[a.shape[1] :], model.coef_[: a.shape[1]]])
    return np.array(W), None


def fit_linearmodels(x, a, z, y):
    from linearmodels.iv import IV2SLS

    exogenous = np.hstack([np.ones((len(x), 1)), x])
    W, se = [], []
    for column in y.T:
        result = IV2SLS(column, exogenous, a, z).fit(cov_type="unadjusted")
        W.append(result.params.to_numpy())
        se.append(result.std_errors.to_numpy())
    return np.array(W), np.array(se)


def measure(tool: str, data: Path) -> dict[str, object]:
    """Run one tool here and report its processor seconds, memory and coefficients."""
    with np.load(data) as arrays:
        rows = [arrays[name] for name in "xazy"]
    fit: Callable = globals()[f"fit_{tool}"]
    prepare: Callable = globals().get(f"prepare_{tool}", lambda *arrays: arrays)
    first_rows, ready = prepare(*(part[:2000] for part in rows)), prepare(*rows)
    fit(*first_rows)  # imports and first-call costs
    seconds, W = [], None
    for _ in range(REPEATS[tool]):
        started = time.process_time()
        W, _ = fit(*ready)
        seconds.append(time.process_time() - started)
    tracemalloc.start()
    fit(*ready)
    memory = tracemalloc.get_traced_memory()[1] / 2**20
    listed = None if W is None else np.asarray(W).tolist()
    return {"seconds": min(seconds), "mebibytes": memory, "W": listed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", default="5,10,20")
    parser.add_argument("--episodes", type=int, default=80)
    parser.add_argument("--tools", default=",".join(REPEATS))
    parser.add_argument("--econml", default=sys.executable, help="interpreter that has econml")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, Path(options.data))))
        return
    for k in map(int, options.dims.split(",")):
        compare(k, options)


def compare(k: int, options: argparse.Namespace) -> None:
    import ivvi

    batch = ivvi.make_env("linear", dim=k).collect(episodes=options.episodes).to_batch()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.npz"
        np.savez(data, **{n: np.ascontiguousarray(getattr(batch, n)) for n in "xazy"})
        results = {tool: run_tool(tool, data, options) for tool in options.tools.split(",")}
    base = results["ivvi"]
    print(f"\nlinear k = {k}, setting I, {len(batch):,} rows, one BLAS thread, CPU seconds")
    print(f"{'tool':<14}{'seconds':>10}{'ratio to ivvi':>15}{'memory MiB':>12}   coefficients")
    for tool, result in results.items():
        if "error" in result:
            print(f"{tool:<14}{'not run: ' + result['error']}")
            continue
        ratio = result["seconds"] / base["seconds"]
        agrees = ""
        if result["W"] is not None and tool != "ivvi":
            gap = np.abs(np.array(result["W"]) - np.array(base["W"])).max()
            agrees = f"max difference {gap:.1e}"
        memory = result["mebibytes"]
        print(f"{tool:<14}{result['seconds']:>10.4f}{ratio:>15.2f}{memory:>12.1f}   {agrees}")


def run_tool(tool: str, data: Path, options: argparse.Namespace) -> dict:
    python = options.econml if tool == "econml" else sys.executable
    threads = {f"{n}_NUM_THREADS": "1" for n in ("OPENBLAS", "OMP", "MKL", "NUMBA")}
    command = [python, __file__, "--measure", tool, "--data", str(data)]
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
