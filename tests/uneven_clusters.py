"""A log of few and uneven clusters, and its regression from the rows."""

import numpy as np


def uneven(seed=0, sizes=(40, 9, 7, 5, 4, 12, 30, 6, 5, 8), d_z=2):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(len(sizes)), sizes)
    both = rng.normal(size=(1 + d_z, len(sizes)))[:, g]
    z = (0.5 * both[1:] + rng.normal(size=(d_z, len(g)))).T
    e = 0.6 * both[0] + rng.normal(size=len(g))
    x = rng.normal(size=len(g))
    a = z.sum(axis=1) + 0.5 * x + 0.7 * e + rng.normal(size=len(g))
    y = -0.5 * a + 0.3 * x + e
    columns = {"ward": g, "x0": x, "a0": a, "next_x0": y}
    return columns | {f"z{i}": z[:, i].copy() for i in range(d_z)}


def regression(columns):
    """Return the instrumented features, the residuals and the features, from the rows."""
    one = np.ones(len(columns["x0"]))
    z = [columns[name] for name in columns if name.startswith("z")]
    X = np.column_stack([one, columns["x0"], columns["a0"]])
    Z = np.column_stack([one, columns["x0"], *z])
    fitted = Z @ np.linalg.lstsq(Z, X)[0]
    w = np.linalg.lstsq(fitted, columns["next_x0"])[0]
    return fitted, columns["next_x0"] - X @ w, X, Z
