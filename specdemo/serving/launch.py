"""Serves an OpenAI-compatible API, in this process or on a Ray cluster of its own, which
listens on 127.0.0.1. But Serve's replicas open a port on every address; Ray has no setting for it.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator

from specdemo.errors import BadInput, RequestFailed
from specdemo.host.hardware import processors
from specdemo.serving.server_options import ServeOptions, key_from_environment

RAY_OFF = (
    "RAY_SERVE_LOG_TO_STDERR",
    "RAY_enable_metrics_collection",
    # Despite its name, 0 makes Ray listen on the loopback address only, on every system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
)


def serve_locally(options: ServeOptions) -> None:
    """Serve with one engine in this process. Requests get 503 until the model is loaded."""
    if options.replicas > 1 or options.max_replicas:
        raise BadInput("--replicas and --max-replicas need Ray; leave out --no-ray.")
    from specdemo.serving.application import application
    from specdemo.serving.backend import LocalBackend
    from specdemo.serving.metrics import log_requests
    from specdemo.serving.request_guard import Server, bound_socket, url_of

    listening = bound_socket(options.host, options.port)
    url = url_of(*listening.getsockname()[:2])
    log_requests()
    backend = LocalBackend(options)
    app = application(backend, options, key_from_environment())
    server = Server(app, app.state.guard, options.drain_seconds, finish=backend.close)

    def load() -> None:
        backend.load()
        if backend.failed:
            server.should_exit = True
        else:
            print(f"Ready: {url}/v1", flush=True)

    print(f"Listening at {url}; loading the model.", flush=True)
    threading.Thread(target=load, daemon=True).start()
    server.run([listening])
    if backend.failed:
        raise RequestFailed(backend.failed)
    print("Stopped.", file=sys.stderr)


@contextlib.contextmanager
def on_ray(options: ServeOptions) -> Iterator[str]:
    """Starts the service on a cluster of its own; yields its URL once it is ready. At exit running
    answers are finished. Raises RequestFailed if the service does not start."""
    from specdemo.serving.request_guard import bound_socket, url_of

    most, each = options.max_replicas or options.replicas, options.cpus_per_replica or 1
    if most * each > processors():  # Ray would wait for more for ever
        raise BadInput(
            f"{most} replicas of {each} cores each need {most * each} cores and this machine has "
            f"{processors()}; lower --replicas (or --max-replicas) or --cpus-per-replica."
        )
    for name in RAY_OFF:
        os.environ.setdefault(name, "0")
    bound_socket(options.host, options.port).close()
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from specdemo.serving import deployment

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(
        num_cpus=processors(),
        include_dashboard=False,
        object_store_memory=100_000_000,  # bytes; messages between processes are far smaller
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        application = deployment.app(options)
        http = HTTPOptions(host=options.host, port=options.port)
        serve.start(http_options=http, proxy_location="HeadOnly")
        try:
            serve.run(application, name=deployment.NAME, route_prefix="/")
        except Exception as error:
            # Serve's report of a replica that did not start is mostly traceback.
            failed = serve.status().applications.get(deployment.NAME)
            parts = failed.deployments.values() if failed else ()
            report = "\n".join(part.message for part in parts) or str(error)
            reason = (re.findall("could not be loaded: (.+)", report) or report.splitlines())[-1]
            raise RequestFailed(f"The service did not start: {reason[:400]}") from error
        yield url_of(options.host, options.port)
    finally:
        with contextlib.suppress(Exception):
            serve.delete(deployment.NAME)
        ray.shutdown()
