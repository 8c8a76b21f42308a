"""The moments of a Parquet log on several processes or machines, by Dask.

Sums of pieces are added in the order of the log, so that the result does not depend on the
cluster or on chance; it differs from that of one process by rounding alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ivvi.errors import InputError
from ivvi.layout import Layout
from ivvi.logs import Batch, Counts, Log
from ivvi.logs.cluster import ClusterPass
from ivvi.moments import Moments, few_threads, merge_episodes

PATIENCE = 5.0
"""Seconds to wait for a scheduler's answer."""
LOCAL: dict[str, Any] = {
    "threads_per_worker": 1,
    "dashboard_address": ":0",  # any free port: 8787 may be another cluster's
    "scheduler_kwargs": {"dashboard": False},
    "silence_logs": logging.CRITICAL,
}
"""Settings of the clusters that we start and stop ourselves."""

Cluster = Any
"""A number of local processes, the address of a scheduler, or a `distributed.Client`."""


def compute_moments_on(
    cluster: Cluster,
    log: Log,
    layout: Layout,
    *,
    episodes: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[Moments, Counts]:
    """Return what `compute_moments` returns, up to rounding, computed by a cluster."""
    with connected(cluster) as client:
        walk = ClusterPass(client, log, partial(_sums, layout, episodes), episodes, progress)
        total, blocks = Moments.empty(layout), []
        for part, numbers in walk:
            total = total + part.without_episodes()
            if (own := part.episodes) is not None:
                blocks.append(replace(own, number=numbers[own.number]))
    return replace(total, episodes=merge_episodes(blocks) if blocks else None), walk.counts


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Give a `distributed.Client`; local processes are started and stopped."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError("Dask is not installed; pip install 'ivvi[dask]' brings it") from error
    if isinstance(cluster, Client):
        yield cluster
    elif isinstance(cluster, int):
        if cluster < 1:
            raise InputError(f"{cluster} workers were asked for; at least 1 is wanted")
        with LocalCluster(n_workers=cluster, **LOCAL) as local, Client(local) as client:
            yield client
    else:
        with _reached(Client, str(cluster)) as client:
            if not client.nthreads():
                raise InputError(f"the Dask scheduler at {cluster} has no workers; start some")
            yield client


def _reached(client: Any, address: str) -> Any:
    try:
        return client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}; an address such as tcp://host:8786 is wanted"
        ) from error


def _sums(layout: Layout, episodes: bool, batches: Iterable[Batch]) -> Moments:
    """Return the moments of some batches."""
    total, blocks = Moments.empty(layout), []
    with few_threads(0):  # the cluster counts on one thread for each task
        for batch in batches:
            part = Moments.of_batch(layout, batch, episodes=episodes)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
    return replace(total, episodes=merge_episodes(blocks) if blocks else None)
