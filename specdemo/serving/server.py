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

from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.metrics import log_requests
from specdemo.serving.api import application
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


def serve_locally(options: ServeOptions) -> None:
    """Serve with one engine in this process. Requests get 503 until the model is loaded."""
    listening = bound_socket(options.host, options.port)
    url = url_of(*listening.getsockname()[:2])
    log_requests()
    backend = LocalBackend(lambda report: open_engine(options, report, options.cpus_per_replica))
    app = application(backend, options, key_from_environment())
    server = Server(app, app.state.door, options.drain_seconds, finish=backend.close)

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
    most, each = options.max_replicas or options.replicas, options.cpus_per_replica or 1
    if most * each > cores:
        raise BadInput(
            f"{most} replicas of {each} cores each need {most * each} cores and this machine has "
            f"{cores}; lower --replicas (or --max-replicas) or --cpus-per-replica."
        )


@contextlib.contextmanager
def on_ray(options: ServeOptions) -> Iterator[str]:
    """The service on a cluster of its own, ready; gives its URL. Answers that have begun are
    finished at exit. Raises RequestFailed when it does not come up."""
    for name, value in RAY_QUIET.items():
        os.environ.setdefault(name, value)
    bound_socket(options.host, options.port).close()
    # Despite its name this makes Ray listen on the loopback address alone, on every system.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    require_cores(options, cores)
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions
    except ImportError as error:
        raise MissingPackage(f"Ray cannot be imported: {error}.") from error

    from specdemo.serving import deployment

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(
            num_cpus=cores,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[-1][:300]
        raise RequestFailed(f"Ray could not be started: {reason}") from error
    try:
        http = HTTPOptions(host=options.host, port=options.port)
        serve.start(http_options=http, proxy_location="HeadOnly")
        try:
            serve.run(deployment.app(options), name=deployment.NAME, route_prefix="/")
        except Exception as error:
            # Serve's report of a replica that did not start is mostly traceback.
            parts = serve.status().applications[deployment.NAME].deployments.values()
            report = "\n".join(one.message for one in parts) or str(error)
            reason = (re.findall(f"{LOADING_FAILED} (.+)", report) or report.splitlines())[-1]
            raise RequestFailed(f"The service did not start: {reason[:400]}") from error
        yield url_of(options.host, options.port)
    finally:
        with contextlib.suppress(Exception):
            serve.delete(deployment.NAME)
        ray.shutdown()


def serve_on_ray(options: ServeOptions) -> None:
    """Serve on Ray until SIGINT or SIGTERM."""
    ended = threading.Event()
    print("Starting Ray and the replicas.", flush=True)
    with on_ray(options) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"Ready: {url}/v1", flush=True)
        ended.wait()
        print("Finishing what has begun.", file=sys.stderr)
