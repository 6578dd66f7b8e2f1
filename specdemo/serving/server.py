"""Runs the service until interrupted: in this process alone, or on a Ray cluster.

Ray's usage statistics and dashboard are off, and its own processes listen on 127.0.0.1 only.
Serve's replicas open a port on every address for calls between them; Ray has no setting for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.metrics import log_requests
from specdemo.serving.api import Api
from specdemo.serving.backend import LOADING_FAILED, LocalBackend
from specdemo.serving.door import Server, bound_socket, url_of
from specdemo.serving.options import ServeOptions, key_from_environment, open_engine

OBJECT_STORE = 100_000_000
"""Bytes of shared memory for Ray's objects; what passes between processes is far smaller."""

RAY_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Environment of Ray, unless the user has set it otherwise."""


def serve_locally(options: ServeOptions, host: str, port: int) -> None:
    """Serve with one engine in this process. Requests get 503 until the model is loaded."""
    listening = bound_socket(host, port)
    url = url_of(*listening.getsockname()[:2])
    log_requests()
    backend = LocalBackend(lambda report: open_engine(options, report, options.cpus_per_replica))
    api = Api(backend, options, key_from_environment())
    server = Server(api.app, api.door, options.drain_seconds, finish=backend.close)

    def load() -> None:
        backend.load()
        if backend.failed:
            server.should_exit = True
        else:
            print(f"Ready: {backend.ready_engine().model['id']} at {url}/v1", flush=True)

    print(f"Listening at {url}; loading the model.", flush=True)
    threading.Thread(target=load, daemon=True).start()
    server.run([listening])
    if backend.failed:
        raise RequestFailed(f"{LOADING_FAILED} {backend.failed}")
    print("Stopped.", file=sys.stderr)


def require_cores(options: ServeOptions, cores: int) -> None:
    """Raises BadInput when the machine has too few cores: Ray would wait for more for ever."""
    each = options.cpus_per_replica or 1
    needed = options.most * each
    if needed > cores:
        raise BadInput(
            f"{options.most} replicas of {each} cores each need {needed} cores and this machine "
            f"has {cores}; lower --replicas (or --max-replicas) or --cpus-per-replica."
        )


@contextlib.contextmanager
def on_ray(
    options: ServeOptions, host: str, port: int, *, address: str | None = None
) -> Iterator[str]:
    """The service on a cluster, ready; gives its URL. Answers that have begun are finished at exit.

    Starts a cluster of its own unless `address` names one, as ray.init takes it. Raises
    RequestFailed when it does not come up.
    """
    for name, value in RAY_QUIET.items():
        os.environ.setdefault(name, value)
    bound_socket(host, port).close()
    settings: dict[str, Any] = {"address": address}
    if address is None:
        # Despite its name this makes Ray listen on the loopback address alone, on every system.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        require_cores(options, cores)
        settings = {
            "num_cpus": cores,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions
    except ImportError as error:
        raise MissingPackage(f"Ray cannot be imported: {error}.") from error

    from specdemo.serving import deployment

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(**settings, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        reason = str(error).strip().splitlines()[-1][:300]
        raise RequestFailed(f"Ray could not be started: {reason}") from error
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port), proxy_location="HeadOnly")
        try:
            serve.run(deployment.app(options), name=deployment.NAME, route_prefix="/")
        except Exception as error:
            raise RequestFailed(f"The service did not start: {_reason(error)}") from error
        yield url_of(host, port)
    finally:
        with contextlib.suppress(Exception):
            serve.delete(deployment.NAME)
        ray.shutdown()


def _reason(error: Exception) -> str:
    """The sentence in Serve's report of a replica that did not start, which is mostly traceback."""
    from ray import serve

    from specdemo.serving.deployment import NAME

    report = str(error)
    with contextlib.suppress(Exception):
        deployments = serve.status().applications[NAME].deployments.values()
        report = "\n".join(one.message for one in deployments if one.message) or report
    sentences = re.findall(f"{LOADING_FAILED} (.+)", report)
    return (sentences or report.strip().splitlines() or [type(error).__name__])[-1][:400]


def serve_on_ray(options: ServeOptions, host: str, port: int, address: str | None) -> None:
    """Serve on Ray until SIGINT or SIGTERM."""
    ended = threading.Event()
    print("Starting Ray and the replicas.", flush=True)
    with on_ray(options, host, port, address=address) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        count = f"{options.least} to {options.most}" if options.autoscaling else options.least
        print(f"Ready: {url}/v1, {count} replicas", flush=True)
        ended.wait()
        print("Finishing what has begun.", file=sys.stderr)
