"""Dask clusters: local ones that we start and stop, and those that are there already."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ivvi.errors import InputError

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
