"""What ended a logged run: the scheduler, the disk, a signal, an exit code, or an error of its own."""

from __future__ import annotations

from meshwright.diagnose import error_kinds
from meshwright.diagnose.launcher_lines import Exit, first_of
from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.records import (
    FOLLOWS_A_DEATH,
    KILLED,
    STOPPED,
    Evidence,
    Finding,
    Part,
    of,
)
from meshwright.engine.watch.flightlog import ranks_text

_EXITS: dict[int, tuple[str, str]] = {
    1: (
        "with exit code 1: an exception of Python most often",
        "read that process' own output (torchrun --tee 3 --log-dir logs, or the lines above this in the whole log); the "
        "launcher only says that it ended. torchrun names the exception itself where the script's main function wears "
        "@record of torch.distributed.elastic.multiprocessing.errors",
    ),
    2: (
        "with exit code 2: its arguments were refused, or the script was not found",
        "read the usage line that it printed above",
    ),
    -4: (
        "of an illegal instruction (SIGILL)",
        "a build made for a newer processor: install one for this host",
    ),
    -1: (
        "with its terminal or session (SIGHUP)",
        "start it detached from the login: a job of the scheduler, tmux, or setsid",
    ),
    -2: (
        "as it was interrupted (SIGINT): by hand, or by its launcher",
        "ask who pressed Ctrl-C; in a job, the scheduler's warning signal before its time limit does the same",
    ),
    -7: (
        "of a bus error (SIGBUS): shared memory or a mapped file ran out under it",
        "more /dev/shm (--shm-size, or an emptyDir of medium Memory), and see that mapped data files are whole and the disk not full",
    ),
    -24: (
        "as its limit of processor time was over (SIGXCPU)",
        "ulimit -t of the job, or a shell for logins that limits long processes",
    ),
    -25: ("as a file grew over its limit (SIGXFSZ)", "ulimit -f, or the quota of the file system"),
    -6: (
        "by aborting itself (SIGABRT): a failed check in C++ code, or NCCL's watchdog",
        "the message of the check stands above in that rank's own output (terminate called, Check failed, Watchdog caught): "
        "give the whole log",
    ),
    -8: (
        "of an arithmetic fault (SIGFPE)",
        "look above for the operation; a division by a size of zero most often",
    ),
    -15: (
        "as it was told to (SIGTERM): the launcher ends the others when one fails, or the scheduler ends all",
        "look for the first rank that ended otherwise, then at the scheduler (sacct)",
    ),
    124: (
        "with exit code 124: a time limit was over (timeout's code)",
        "see what limits its time (the timeout command, a time-out of the launcher or test) and where it stood by then",
    ),
    126: (
        "with exit code 126: the program may not be executed",
        "see its rights and that it is for this machine",
    ),
    127: (
        "with exit code 127: the program was not found",
        "see PATH and the container's image on every host",
    ),
}
"""How a process ended, and where to look, by its exit code."""
_OTHER = ("with exit code {code}", "read that process' own output (torchrun --tee 3 --log-dir logs, or the lines above this in "
          "the whole log): the launcher only says that it ended")  # fmt: skip
SIGKILL = -9


def ends(part: Part, reading: LogReading) -> None:
    """What ended the run, where nothing before explains it."""
    root = first_of(reading.exits.found, reading.started)
    if root is not None and root.code == SIGKILL and root.first and _only_followed(part):
        part.findings.append(_killed(reading, root))
        return
    faults = [f for f in part.findings if f.cause.kind != "bubble" and not f.layout_cost]
    if any(f.cause.kind in (*STOPPED, "unknown") for f in faults):
        return
    for line, why, text in reading.stopped:
        if why in ("cancelled", "the job's time limit") or why.startswith("the scheduler"):
            part.ended = f"it was ended by {why}" if why[0] == "t" else f"it was {why} by hand"
            return
        if faults:
            return
        if why.startswith("another task"):
            break
        node = why == "a node failed"
        part.findings.append(
            of("gpu-error" if node else "wrong-configuration", f"The run ended because {why}",
               "exclude the node and resume from the last checkpoint" if node
               else "free space or quota where checkpoints and logs go (df -h, df -i, quota), keep fewer checkpoints; then "
               "resume from the last whole one", confidence=0.8, where=why,
               evidence=(Evidence(file=reading.name, line=line, text=text),))
        )  # fmt: skip
        return
    if faults:
        return
    if root is not None and root.code == SIGKILL:
        part.findings.append(_killed(reading, root))
        return
    went_on = bool(reading.steps) and reading.steps[-1].line > (root.line if root else 0)
    own = own_errors(reading)
    if reading.alarms:
        return
    if own:
        part.findings.append(error_kinds.judge(own[0], reading.name))
    elif root is not None and not went_on:
        part.findings.append(_exit(part, reading, root))
    elif reading.traceback is not None and not (
        reading.steps and reading.steps[-1].line > reading.traceback[0]
    ):
        line, frame, rank = reading.traceback
        part.findings.append(
            of("unknown", "The program stopped with an error whose text is cut off"
               + (f", in {frame[:200]}" if frame else ""),
               "give the text to its end: the last line of a traceback names the error", confidence=0.6, where="program",
               ranks=() if rank is None else (rank,),
               evidence=(Evidence(file=reading.name, line=line, text=frame or "Traceback (most recent call last)", rank=rank),))
        )  # fmt: skip
    else:
        _last_words(part, reading)


def own_errors(reading: LogReading) -> list[error_kinds.Failure]:
    """Errors of the program behind its last step, since a launcher started it last."""
    last = max(reading.started, reading.steps[-1].line if reading.steps else 0)
    own = [one for one in reading.errors if one.line > last and not _harmless(one.text)]
    return [one for one in own if not one.wrapped] or own


def _only_followed(part: Part) -> bool:
    """Whether all that is known so far is what the others meet when a process dies: connections that break, waiting."""
    return all(
        f.layout_cost or f.cause.kind in ("unknown", *FOLLOWS_A_DEATH) for f in part.findings
    )


def _last_words(part: Part, reading: LogReading) -> None:
    """Where nothing else is known: what the scheduler says of another task, or the line that calls itself an error."""
    if reading.stopped:
        line, why, text = reading.stopped[0]
        rank = None
        said, where = f"The run ended because {why}; which and why, this text does not tell", why
    elif reading.complaint is not None and not (
        reading.steps and reading.steps[-1].line > reading.complaint[0]
    ):
        line, text, rank = reading.complaint
        said, where = f"The text's first error line is none that is known: {text[:160]}", "program"
    else:
        return
    part.findings.append(
        of("unknown", said, "give the output of the process that failed first, with the lines above this one", confidence=0.35,
           where=where, ranks=() if rank is None else (rank,),
           evidence=(Evidence(file=reading.name, line=line, text=text, rank=rank),))
    )  # fmt: skip


def _who(one: Exit) -> str:
    if one.rank is not None:
        return f"rank {one.rank}"
    return "a rank" if one.local is None else f"local rank {one.local}"


def _ranks(one: Exit) -> tuple[int, ...]:
    return () if one.rank is None else (one.rank,)


def _killed(reading: LogReading, root: Exit) -> Finding:
    named = root.rank is not None or root.local is not None
    return of(
        "out-of-memory", f"{'The process of ' + _who(root) if named else 'A process'} was killed from outside (SIGKILL): "
        "most often by the host's out-of-memory killer",
        "see dmesg and the job's memory limit: the killer names the process there. Fewer loader workers, weights loaded by "
        "one process at a time or memory-mapped, no offload that does not fit; if dmesg has nothing, the scheduler or "
        "somebody ended it", confidence=0.8 if named else 0.6, where=KILLED, ranks=_ranks(root),
        evidence=(Evidence(file=reading.name, line=root.line, text=root.text, rank=root.rank),),
    )  # fmt: skip


def _exit(part: Part, reading: LogReading, root: Exit) -> Finding:
    same = [one for one in reading.exits.found if one.code == root.code and one.rank is not None]
    ranks = tuple(sorted({one.rank for one in same if one.rank is not None}))
    how, remedy = _EXITS.get(root.code, _OTHER)
    how = how.format(code=root.code)
    part.missing.append(
        "the output of the process that ended first, above what the launcher says of it"
    )
    several = len(ranks) > 1 and not root.first
    who = ranks_text(ranks) if several else _who(root)
    return of(
        "unknown", f"The process{'es' if several else ''} of {who} ended {how}; {'their' if several else 'its'} own error is "
        "not in this text", remedy, confidence=0.6, where="program", ranks=ranks if several else _ranks(root),
        evidence=tuple(Evidence(file=reading.name, line=one.line, text=one.text, rank=one.rank) for one in (same or [root])[:4]),
    )  # fmt: skip


def _harmless(text: str) -> bool:
    return text.startswith(
        (
            "ChildFailedError",
            "KeyboardInterrupt",
            "DeprecationWarning",
            "CalledProcessError",
            "ProcessExited",
        )
    )
