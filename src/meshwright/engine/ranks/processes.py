"""Real processes on this machine: a fork server with torch already imported, one child per rank.

A child forked from the server is ready in about a tenth of a second where a fresh interpreter
needs seconds to import torch. If one rank fails, all are ended and the caller gets one error that
names the rank; if the caller dies, the ranks notice and exit. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import _exit_function as run_exit_functions  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NoReturn

from meshwright.engine.ranks.preflight import check_memory
from meshwright.engine.watch.flightlog import is_stopped
from meshwright.specs.errors import SpecError

_DIED = "the process ended"
_LOOK_EVERY_S = 1.0
"""Between looks for stopped processes; one that is stopped at two looks in a row has failed."""
_PEER_LOST = (
    "remote worker",
    "Connection",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "timed out",
    "Timed out",
)


class RankError(RuntimeError):
    """A rank failed; the message is one sentence, `details` the traceback."""

    def __init__(self, rank: int, message: str, details: str = "", waiting: str = "") -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank, self.reason, self.details = rank, message, details
        self.waiting = waiting
        """Where a rank noticed that something was wrong, such as `all_reduce of gradient_norm`."""

    @property
    def lost_peer(self) -> bool:
        """Whether the rank only waited for another in vain."""
        return _blame(self)[0] == 3

    @property
    def ended(self) -> bool:
        """Whether the process ended without a word."""
        return self.reason.startswith(_DIED)


def run_ranks(
    function: Callable[..., Any],
    world: int,
    *arguments: Any,
    on_message: Callable[[int, Any], None] | None = None,
    timeout_s: float = 600.0,
    collective_timeout_s: float = 120.0,
    grace_s: float = 0.0,
) -> list[Any]:
    """Run `function(*arguments)` as ranks 0..world-1 of a gloo group; return their results.

    `function` must be importable by name. If `on_message` is given, `function` gets a keyword
    `report`, a callable whose argument arrives here while the ranks run. On SIGTERM ranks are sent
    one too and have `grace_s` to end by themselves.

    Raises:
        RankError: the first rank that failed, with its own reason (not the peers' broken pipes).
        SpecError: a rank refused its input, or there is no memory for so many.
    """
    check_memory(world)
    context = fork_server()
    with _meeting_place() as directory:
        children: list[Any] = []
        pipes: list[Connection] = []
        lifeline_read, lifeline_write = context.Pipe(duplex=False)
        try:
            for rank in range(world):
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(
                    target=_rank_main,
                    args=(
                        function, arguments, rank, world, str(Path(directory) / "store"),
                        theirs, lifeline_read, collective_timeout_s, on_message is not None,
                    ),
                    daemon=True,
                )  # fmt: skip
                try:
                    child.start()
                except (OSError, EOFError) as error:
                    raise SpecError(
                        "ranks", world, f"process {rank} cannot be started ({error})"
                    ) from None
                theirs.close()
                children.append(child)
                pipes.append(ours)
            lifeline_read.close()
            try:
                return _collect(children, pipes, on_message, time.monotonic() + timeout_s)
            except KeyboardInterrupt as error:
                if type(error) is not KeyboardInterrupt and grace_s:  # SIGTERM, not Ctrl-C
                    _let_end(children, pipes, on_message, grace_s)
                raise
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
                child.join()
            for pipe in (*pipes, lifeline_write):
                pipe.close()


def fork_server() -> Any:
    """The context that starts ranks by forking a server with torch already imported.

    Ctrl-C is the parent's to answer: server and ranks are started with it blocked, since an interrupt
    in the middle of the server's imports would print its traceback over the parent's sentence.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["meshwright.engine.ranks.preload"])
    resource_tracker.ensure_running()  # first: it changes the mask, too
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _let_end(
    children: list[Any],
    pipes: list[Connection],
    on_message: Callable[[int, Any], None] | None,
    grace_s: float,
) -> None:
    """Ask the ranks to stop and hear them out."""
    for child in children:
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGTERM)
    with contextlib.suppress(RankError, SpecError):
        _collect(children, pipes, on_message, time.monotonic() + grace_s)


def _meeting_place() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="meshwright-")
    except OSError as error:
        raise SpecError(
            "TMPDIR", tempfile.gettempdir(), f"takes no file ({error.strerror}); set another"
        ) from None


def _collect(
    children: list[Any],
    pipes: list[Connection],
    on_message: Callable[[int, Any], None] | None,
    deadline: float,
) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[RankError] = []
    stopped: set[int] = set()
    next_look = time.monotonic() + _LOOK_EVERY_S
    open_pipes: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes:
        # After a first failure the others get a moment to say what they know: the rank that was
        # first to *report* may only have lost its peer.
        left = min(deadline - time.monotonic(), 2.0 if failures else _LOOK_EVERY_S)
        ready = wait(list(open_pipes), timeout=max(left, 0.0))
        if time.monotonic() > next_look:
            still = {rank for rank in open_pipes.values() if is_stopped(children[rank].pid)}
            if stopped & still:
                rank = min(stopped & still)
                failures.append(RankError(rank, "the process is stopped (SIGSTOP)"))
                break
            stopped, next_look = still, time.monotonic() + _LOOK_EVERY_S
        if not ready:
            if failures:
                break
            if time.monotonic() < deadline:
                continue
            raise RankError(min(open_pipes.values()), "no answer before the time limit")
        pipe: Any
        for pipe in ready:
            rank = open_pipes[pipe]
            try:
                kind, payload = pipe.recv()
            except EOFError:
                del open_pipes[pipe]
                if rank not in results and not any(f.rank == rank for f in failures):
                    children[rank].join(1.0)
                    failures.append(RankError(rank, _how_it_ended(children[rank].exitcode)))
                continue
            if kind == "message" and on_message is not None:
                on_message(rank, payload)
            elif kind == "result":
                results[rank] = payload
            elif kind == "error":
                message, details = payload
                failures.append(RankError(rank, message, details, _operation(details)))
            elif kind == "refused":
                raise payload
    if failures:
        raise _culprit(failures, results, children)
    return [results[rank] for rank in range(len(pipes))]


def _culprit(failures: list[RankError], results: dict[int, Any], children: list[Any]) -> RankError:
    """The failure to report: a real error if there is one, else the one rank that said nothing."""
    worst = min(failures, key=_blame)
    spoke = {failure.rank for failure in failures} | set(results)
    silent = [rank for rank in range(len(children)) if rank not in spoke]
    if _blame(worst)[0] == 3 and len(silent) == 1:
        heard = f"rank {worst.rank} waited in vain: {worst.reason}"
        worst = RankError(silent[0], f"stopped answering ({heard})", worst.details)
    if not worst.waiting:
        noticed = [failure for failure in failures if failure.waiting]
        worst.waiting = min(noticed, key=_blame).waiting if noticed else ""
    return worst


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"{_DIED} by {signal.Signals(-code).name}"
    return f"{_DIED} with exit code {code}"


def _operation(details: str) -> str:
    """What the innermost function of ours was waiting in, from a traceback's text."""
    frames = re.findall(r'File "([^"]+)", line \d+, in (\S+)', details)
    ours = [at for at, (file, _) in enumerate(frames) if "/meshwright/engine/" in file]
    if not ours or frames[ours[-1]][1] == "_rank_main":
        return ""
    passed_on = ("wrapper", "wait", "_fn", "inner")
    inside = [name for _, name in frames[ours[-1] + 1 :] if name not in passed_on]
    where = frames[ours[-1]][1]
    return f"{inside[-1]} of {where}" if inside else where


def _blame(failure: RankError) -> tuple[int, int]:
    """Stopped and dead processes first, then real errors, then lost peers; within each by rank."""
    if failure.reason.startswith("the process is stopped"):
        return 0, failure.rank
    if failure.ended:
        return 1, failure.rank
    return 2 + any(sign in failure.reason for sign in _PEER_LOST), failure.rank


def _rank_main(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    world: int,
    store: str,
    pipe: Connection,
    lifeline: Connection,
    collective_timeout_s: float,
    reports: bool,
) -> None:
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()
    import torch.distributed as dist

    from meshwright.engine.parallel.backend import init_process_group

    warnings.simplefilter("ignore")  # torch's own deprecations, once per rank and call site
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # errors are reported below
    lock = threading.Lock()

    def send(kind: str, payload: Any) -> None:
        raw = pickle.dumps((kind, payload))  # fails here, not half-way into the pipe
        with lock:
            pipe.send_bytes(raw)

    if not Path(store).parent.exists():
        # The caller gave up before this rank began. Opening a file store in a folder that is gone
        # waits five minutes with the interpreter's lock held, so the lifeline could not end it.
        os._exit(1)
    code = 0
    try:
        init_process_group(
            rank,
            world,
            store=dist.FileStore(store, world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=collective_timeout_s),
        )
        extra = {"report": lambda payload: send("message", payload)} if reports else {}
        send("result", function(*arguments, **extra))
        dist.barrier()
    except SpecError as error:
        code = 2
        send("refused", error)
    except BaseException as error:
        code = 1
        cause: BaseException = error
        while cause.__cause__ is not None:  # torch's pipeline wraps what really happened
            cause = cause.__cause__
        message = " ".join(str(cause).split())[:400] or type(cause).__name__
        send("error", (message, traceback.format_exc()))
    pipe.close()
    leave(code)


def leave(code: int) -> NoReturn:
    """End a rank's process, all its work done, without the interpreter's own exit.

    That one now and then aborts in gloo's threads.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    run_exit_functions()  # what a normal exit does for semaphores and the like
    os._exit(code)


def _exit_with_parent(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
