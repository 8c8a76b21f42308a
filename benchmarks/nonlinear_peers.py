"""The demand design by other libraries: kernel IV, deep feature IV, adversarial and deep GMM.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install mliv torch pandas scikit-learn
    /tmp/peers/bin/python benchmarks/nonlinear_peers.py [--rows 1000] [--rho 0.5] [--seed 5000]
        [--peers KernelIV,DFIV,AGMM,DeepGMM]

Rows and test grid are those of `nonlinear.py`; each peer has the settings that its package has for
this design. A peer that fails prints why.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PRICES, TIMES, KINDS = np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8.0)


def time_curve(t: Any) -> Any:
    """Hartford's sensitivity to the time of year."""
    return 2 * ((t - 5) ** 4 / 600 + np.exp(-4 * (t - 5) ** 2) + t / 10 - 2)


def sales(when: Any, kind: Any, price: Any) -> Any:
    """Expected sales."""
    return 100 + (10 + price) * kind * time_curve(when) - 2 * price


def train(n: int, rho: float, seed: int) -> pd.DataFrame:
    """The rows of `nonlinear.demand`."""
    rng = np.random.default_rng(seed)
    when, kind = rng.uniform(0, 10, n), rng.integers(1, 8, n).astype(float)
    z, v = rng.normal(size=(2, n))
    price = 25 + (z + 3) * time_curve(when) + v
    outcome = sales(when, kind, price) + rng.normal(rho * v, (1 - rho**2) ** 0.5)
    return table(z, v, when, kind, price, outcome)


def test() -> pd.DataFrame:
    """Hartford's grid."""
    price, when, kind = (part.ravel() for part in np.meshgrid(PRICES, TIMES, KINDS, indexing="ij"))
    nothing = np.zeros_like(price)
    return table(nothing, nothing, when, kind, price, sales(when, kind, price))


def table(z: Any, hidden: Any, when: Any, kind: Any, price: Any, outcome: Any) -> pd.DataFrame:
    """Name the columns as mliv reads them: instruments, unseen, covariates, treatment, outcome."""
    truth = sales(when, kind, price)
    columns = {"z0": z, "u0": hidden, "x0": when, "x1": kind, "t0": price, "y0": outcome}
    return pd.DataFrame(columns | {"g0": truth, "v0": outcome, "p0": price, "m0": price, "i0": z})


def main() -> None:
    """Print the test error of each peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rho", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=5000)
    parser.add_argument("--peers", default="KernelIV,DFIV,AGMM,DeepGMM")
    options = parser.parse_args()
    from mliv import inference
    from mliv.utils import CausalDataset

    with tempfile.TemporaryDirectory() as folder:
        rows = train(options.rows, options.rho, options.seed)
        for name, part in (("train", rows), ("valid", rows), ("test", test())):
            part.to_csv(Path(folder) / f"{name}.csv", index=False)
        for peer in options.peers.split(","):
            started = time.process_time()
            data = CausalDataset(f"{folder}/")
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    model = getattr(inference, peer)()
                    model.fit(data)
                    predicted = model.predict(data.test)
                error = np.mean(
                    (np.asarray(predicted).ravel() - np.asarray(data.test.g).ravel()) ** 2
                )
                outcome = f"{error:.4g}"
            except Exception as problem:  # a peer's own fault is a result here
                outcome = f"failed: {problem}"
            seconds = time.process_time() - started
            place = f"demand {options.rho} {options.rows}"
            print(f"{place}, {peer}: {outcome} ({seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
