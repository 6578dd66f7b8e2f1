"""Starts a Ray cluster of our own on this machine, or joins one, and runs the service on it until interrupted.

Ray asks nobody and tells nobody: usage statistics and the dashboard are off, and its own processes listen on 127.0.0.1
only. Serve's replicas open a port on every address for calls between them; Ray has no setting for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

from specdemo.serving.backend import LOADING_FAILED
from specdemo.serving.options import ServeOptions
from specdemo.models.errors import BadChoice, ZooError

OBJECT_STORE = 100_000_000
"""Bytes of shared memory for Ray's objects. What passes between gateway and engines is smaller than that by far."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Environment of Ray, unless the user has set it otherwise."""

ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""More of it, for a cluster of this machine only: despite its name it makes Ray listen on the loopback address alone,
on every system. Without it, Ray's own ports are open to the network."""


def require_cores(options: ServeOptions, cores: int) -> None:
    """Raises BadChoice when this machine has too few cores for the replicas: Ray would wait for more for ever."""
    each = options.cpus_per_replica or 1
    if options.most * each > cores:
        raise BadChoice(f"{options.most} replicas of {each} cores each need {options.most * each} cores and this machine "
                        f"has {cores}; lower --replicas (or --max-replicas) or --cpus-per-replica.")  # fmt: skip


@contextlib.contextmanager
def running(options: ServeOptions, host: str, port: int, *, address: str | None = None) -> Iterator[str]:
    """The service on a cluster, ready; gives its URL. Afterwards answers that have begun are finished, and it is gone.

    Raises ZooError when it does not come up.
    """
    for name, value in (QUIET | (ALONE if address is None else {})).items():
        os.environ.setdefault(name, value)
    from specdemo.serving.local import bound_socket

    bound_socket(host, port).close()
    if address is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        require_cores(options, cores)

    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from specdemo.serving import deployment

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        if address is None:
            ray.init(num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE, log_to_driver=False,
                     logging_level="ERROR", _node_ip_address="127.0.0.1")  # fmt: skip
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise ZooError(f"Ray could not be started: {str(error).strip().splitlines()[-1][:300]}") from error
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port), proxy_location="HeadOnly")
        try:
            serve.run(deployment.app(options), name=deployment.NAME, route_prefix="/")
        except Exception as error:
            raise ZooError(f"The service did not come up: {_why(deployment.NAME, error)}") from error
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        with contextlib.suppress(Exception):
            serve.delete(deployment.NAME)
        ray.shutdown()


def _why(name: str, error: Exception) -> str:
    """The sentence in what Serve says of a replica that did not start, which is mostly traceback."""
    from ray import serve

    message = str(error)
    with contextlib.suppress(Exception):
        deployments = serve.status().applications[name].deployments.values()
        message = " ".join(one.message for one in deployments if one.message) or message
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line.partition(LOADING_FAILED)[2].strip() for line in lines if LOADING_FAILED in line]
    return (marked or lines or [type(error).__name__])[-1][:400]


def serve(options: ServeOptions, host: str, port: int, *, address: str | None = None) -> int:
    """Run the service until SIGINT or SIGTERM; returns the exit code."""
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()

    print("Starting Ray and the replicas.", flush=True)
    with running(options, host, port, address=address) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        replicas = f"{options.least} to {options.most} replicas" if options.autoscaling else f"{options.least} replicas"
        print(f"Ready: {url}/v1, {replicas}", flush=True)
        ended.wait()
        print("Finishing what has begun.", file=sys.stderr)
    return 0
