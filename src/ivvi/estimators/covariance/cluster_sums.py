"""What per-cluster moments say of an estimate: scores and second moments of each cluster."""

from __future__ import annotations

import numpy as np

from ivvi.estimators.whitening import Whitened
from ivvi.features.design import Floats
from ivvi.moments import EpisodeMoments


def cluster_products(R: Floats, space: Whitened, held: EpisodeMoments) -> Floats:
    """Sum w (R v) psi~^T over the rows of each cluster, (C, d_e, r), for R (d_e, p)."""
    offset = held.mean - space.shift
    linear = held.weight[:, None] * offset @ space.T
    sums: Floats = np.einsum("ep,cpq,qr->cer", R, held.scatter, space.T, optimize=True)
    sums += (offset @ R.T + R @ space.shift)[:, :, None] * linear[:, None, :]
    return sums


def cluster_seconds(space: Whitened, held: EpisodeMoments) -> Floats:
    """Sum w psi~ psi~^T over the rows of each cluster, (C, r, r)."""
    offset = (held.mean - space.shift) @ space.T
    inside: Floats = np.einsum("pi,cpq,qj->cij", space.T, held.scatter, space.T, optimize=True)
    return inside + held.weight[:, None, None] * offset[:, :, None] * offset[:, None]
