"""Starts the server: checks the options, begins loading the models, and puts the page up in front of that."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from argparse import Namespace
from functools import partial

from specdemo.ui import controls
from specdemo.models.errors import BadChoice
from specdemo.models.machine import require_device
from specdemo.models.pairs import find_pair


class BadOption(ValueError):
    """A command line option that cannot be used; the message names it, its value and what would be accepted."""


def _whole(option: str, value: str, low: int, high: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise BadOption(f"{option} {value!r} should be a whole number from {low} to {high}.")
    return number


def free_port(host: str, wanted: int, tries: int = 50) -> int:
    """`wanted`, or the next port that is free. Raises BadOption when there is none or the host is not ours."""
    for port in range(wanted, min(wanted + tries, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except socket.gaierror as error:
                raise BadOption(f"--host {host!r} is not an address of this machine; try 127.0.0.1.") from error
            except OSError as error:
                if error.errno in (98, 48, 13):  # in use (Linux, macOS), or not allowed
                    continue
                raise BadOption(f"--host {host!r} is not an address of this machine; try 127.0.0.1.") from error
            return port
    raise BadOption(f"--port {wanted}: no free port from {wanted} on; choose another.")


def main(options: Namespace) -> int:
    """Serve until interrupted; returns the exit code."""
    max_new_tokens = _whole("--max-new-tokens", options.max_new_tokens, 1, controls.LONGEST_ANSWER)
    port = free_port(options.host, _whole("--port", options.port, 1, 65535))
    try:
        if options.pair:
            find_pair(options.pair)
        for option, device in (("--device", options.device), ("--draft-device", options.draft_device)):
            require_device(device, option)
    except BadChoice as error:
        raise BadOption(str(error)) from error

    from specdemo import metrics
    from specdemo.ui import choice, page, watch
    from specdemo.ui.service import Service

    alone = options.host in ("127.0.0.1", "localhost", "::1") and not options.share and "SPACE_ID" not in os.environ
    own = alone if options.allow_own_pair is None else options.allow_own_pair
    if options.kv_cache not in controls.KV_CACHES:
        raise BadOption(f"--kv-cache {options.kv_cache!r} should be one of {', '.join(controls.KV_CACHES)}.")
    offer = choice.Offer(options.pair or None, own, (options.device, options.draft_device), options.kv_cache)
    if options.engine:
        offer = _remote(options.engine)
        service = Service(offer.first(), offer.open_session)
    else:
        capacity = {
            "visitors": _whole("--visitors", options.visitors, 1, 64),
            "cache_mb": _whole("--cache-mb", options.cache_mb, 1, 1_000_000),
            "exclusive": options.exclusive,
        }
        first = controls.Models(
            options.pair or controls.AUTO, options.device, options.draft_device, options.kv_cache
        )
        service = Service(first, partial(choice.open_session, **capacity))
    metrics.log_requests()
    built = page.build(service, offer, max_new_tokens)
    built.blocks.queue(max_size=2 * page.VISITORS)
    _look_less_often(built.blocks)
    app, url, _ = built.blocks.launch(
        max_threads=3 * page.VISITORS,  # a run that waits holds a thread
        state_session_capacity=SESSIONS,
        server_name=options.host, server_port=port, share=False, quiet=True, prevent_thread_lock=True,
        show_error=False, mcp_server=True, **built.launch)
    watch.mount(app, service)
    # Which pair suits the machine may take the network two seconds to tell: the page does not wait for that.
    threading.Thread(target=lambda: service.start(offer.first()), name="first-pair", daemon=True).start()
    print(f"The page is up: {url}", flush=True)
    if _has_desktop():
        webbrowser.open(url)
    if options.share:
        _share(built.blocks, options.host, port)
    with contextlib.suppress(KeyboardInterrupt):
        built.blocks.block_thread()
    return 0


SESSIONS = 256
"""Browser sessions whose state Gradio remembers, 0.2 MB each and never given up by itself; the longest unused go first."""

LOOK_EVERY = 0.02
"""Seconds between two looks of Gradio's queue for something to do."""


def _look_less_often(blocks) -> None:
    """Gradio's queue wakes up a thousand times a second to look for questions, and a hundred times for progress bars, of
    which this page has none: each time the models' thread may have to wait for the interpreter."""
    queue = blocks._queue
    queue.sleep_when_free = max(queue.sleep_when_free, LOOK_EVERY)
    queue.progress_update_sleep_when_free = max(queue.progress_update_sleep_when_free, 10 * LOOK_EVERY)


def _remote(url: str):
    """The offer of an engine somewhere else. Raises BadOption when there is none."""
    from specdemo.ui.remote import RemoteOffer
    from specdemo.models.errors import ZooError

    try:
        return RemoteOffer(url)
    except ZooError as error:
        raise BadOption(str(error)) from error


def _has_desktop() -> bool:
    """Whether somebody sits here who can see a browser window."""
    screen = sys.platform in ("darwin", "win32") or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))
    return screen and sys.stdout.isatty() and "SPACE_ID" not in os.environ


def _share(blocks, host: str, port: int) -> None:
    """Print a public link, or say plainly why there is none. The page goes on either way."""
    if "SPACE_ID" in os.environ:
        print("--share: a Space has a public address already.", file=sys.stderr)
        return
    from gradio.networking import setup_tunnel

    try:
        link = setup_tunnel(host, port, blocks.share_token, None, None)
    except Exception as error:  # whatever the tunnel's client, its download or the network raise
        reason = str(error).strip().rstrip(".").splitlines()[0][:160] if str(error).strip() else type(error).__name__
        print(f"--share: no public link can be had ({reason}); the page is at the local address only.",
              file=sys.stderr, flush=True)
        return
    print(f"Public link, for a week at most: {link}", flush=True)
