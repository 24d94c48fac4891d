"""Serving the studio on loopback: a free port, the browser, and a quiet end at Ctrl-C."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable

from meshwright.specs.errors import SpecError

ADDRESS = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a socket bound to loopback on `port`; 0 takes any that is free.

    Raises:
        SpecError: the port is taken or may not be used.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((ADDRESS, port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError("port", port, f"cannot be used ({reason}); 0 takes a free one") from None
    return bound


def serve(
    port: int = 0, open_browser: bool = True, announce: Callable[[str], None] = print
) -> None:
    """Serve the studio until Ctrl-C.

    Args:
        port: of 127.0.0.1; 0 takes a free one.
        open_browser: open the page in the user's browser once the server answers.
        announce: called with the address once the server answers.

    Raises:
        SpecError: the port cannot be used, or the `studio` extra is not installed.
    """
    try:
        import uvicorn
    except ImportError:
        raise SpecError("studio", None, "pip install 'meshwright[studio]' is needed") from None
    from meshwright.studio.app import create_app

    bound = listen(port)
    url = f"http://{ADDRESS}:{bound.getsockname()[1]}/"
    config = uvicorn.Config(
        create_app(), log_level="warning", access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)

    def when_ready() -> None:
        while not server.started and not server.should_exit:
            threading.Event().wait(0.02)
        if server.started:
            announce(url)
            if open_browser:
                webbrowser.open(url)

    threading.Thread(target=when_ready, daemon=True).start()
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # uvicorn has shut down; it raises the signal again once it is done
    finally:
        bound.close()
