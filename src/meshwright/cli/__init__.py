"""The command line: one module a command, imported only when it is the one called."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

COMMANDS: dict[str, tuple[str, str]] = {}
"""Command name → (module under `meshwright.cli`, one-line help). Each module has `command`."""


def _register(name: str, module: str, help_line: str) -> None:
    COMMANDS[name] = (module, help_line)


_register("plan", "plan", "Choose the best parallel layout for a model on a cluster.")
_register("estimate", "estimate", "Price one layout: memory and step time, opened up.")
_register("fits", "fits", "Will the run that this configuration file starts fit?")
_register("memory", "memory", "The ZeRO memory table of a model, for any recipe.")
_register("compare", "compare", "Two plans side by side: what differs, what it costs.")
_register("explain", "explain", "The defence of a plan, in full.")
_register("models", "models", "The model presets, with their sources.")
_register("clusters", "clusters", "The cluster presets, with their sources.")
_register("devices", "devices", "The device presets, each number with its source.")
_register("learn", "learn", "The lessons in the terminal: 15 steps, questions, checks.")
_register("cards", "cards", "The flashcards: on screen, as a PDF, for Anki.")
_register("studio", "studio", "Plan, simulate and learn in the browser, all local.")
_register("train", "train", "Run a plan for real, on processes of this machine.")
_register("report", "report", "The page of a training run, from its records.")
_register("flight", "flight", "The last collectives of a run that stood still: who is missing.")
_register("trace", "trace", "A profiled step as it ran: timeline, bubble, collectives.")
_register("diagnose", "diagnose", "Whatever a run left behind: cause, fix, and what it gains.")
_register("walk", "walk", "The toy model through every axis, on real ranks.")
_register("drill", "drill", "Break a run on purpose; measure its recovery.")
_register("verify", "verify", "Prove that a plan trains as one device would.")
_register("prove", "prove", "Is the loss still right after the layout of my framework changed?")
_register("lab", "lab", "A plan on emulated nodes with slow links.")
_register("dryrun", "dryrun", "A plan of any size on virtual ranks: memory and bytes, no GPU.")
_register("simulate", "simulate", "One training step as a timeline: bubble, causes, memory.")
_register("schedules", "schedules", "Every pipeline schedule side by side.")
_register("goodput", "goodput", "What failures and checkpoints leave of a run.")
_register("collective", "collective", "Price a collective, or watch it step by step.")
_register("schema", "schema", "The JSON Schema of a plan.")
_register("predict", "predict", "Price every run of a table.")
_register("measure", "measure", "This machine as a cluster file, from its own timings.")
_register("settle", "settle", "Race a plan's finalists for real; the measured best wins.")
_register("calibrate", "calibrate", "Fit a cluster's constants to your own measurements.")
_register("scorecard", "scorecard", "Predictions against published measurements.")
_register("export", "export_plan", "A plan as the files of a framework or a launcher.")
_register("import", "import_plan", "A run of another tool as a plan, priced and criticised.")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0; 1 the answer is no (does not fit, a failed check or run); 2 bad input; 70 a fault
    of ours; 74 the output cannot be written; 130 Ctrl-C; 143 SIGTERM.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("MESHWRIGHT_COUNTS", os.path.join(cache, "meshwright", "counts"))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with contextlib.suppress(ValueError):  # not in the main thread: whoever is decides
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _without_output(0)
    except SystemExit as stop:
        # rich ends with 1, our "does not fit", where the reader of a table has left.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        code = _without_output(0)
    except OSError as error:
        _print_error(f"the output cannot be written ({error.strerror})")
        code = _without_output(74)
    except KeyboardInterrupt as stop:
        code = 143 if isinstance(stop, Terminated) else 130
    sys.exit(code)


class Terminated(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C does, with its own exit code."""


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first one is being obeyed
    raise Terminated


def _without_output(code: int) -> int:
    """Let nothing more be written, so that the interpreter's end does not try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    import typer

    from meshwright.specs.errors import DoesNotFitError, SpecError, one_line

    chosen = next((a for a in arguments if not a.startswith("-")), None)
    app = _build_app(chosen if chosen in COMMANDS else None)
    try:
        result = app(arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SpecError as error:
        _print_error(str(error))
        return 2
    except DoesNotFitError as error:
        _print_error(str(error))
        return 1
    except typer.Exit as stop:
        return stop.exit_code
    except Carried as carried:
        if isinstance(carried.ended, KeyboardInterrupt):
            return _stopped(isinstance(carried.ended, Terminated))
        if not isinstance(carried.ended, OSError) or not _of_output(carried.ended):
            return _our_fault(carried.ended)
        raise carried.ended from None
    except (KeyboardInterrupt, typer.Abort) as stop:
        return _stopped(isinstance(stop, Terminated))
    except OSError as error:  # of Typer's own output: its help, its version
        if not _of_output(error):
            return _our_fault(error)
        raise
    except Exception as error:
        # Typer's own usage errors carry an exit code and a message; anything else is our bug.
        code, show = getattr(error, "exit_code", None), getattr(error, "format_message", None)
        if code is None or show is None:
            return _our_fault(error)
        _print_error(one_line(_usage(error, str(show()), arguments, app)))
        return int(code)


# What other tools call an option, beside what it is called here.
_ELSEWHERE = {
    "--cluster": ("nodes", "nnodes", "num-nodes", "gpus", "num-gpus", "gpu", "device", "devices", "hardware", "world-size"),
    "--global-batch": ("gbs", "bs", "batch-size", "global-batch-size", "train-batch-size"),
    "--micro-batch": ("mbs", "micro-batch-size", "per-device-train-batch-size", "batch-size-per-device"),
    "--seq": ("seqlen", "seq-len", "seq-length", "max-seq-len", "max-seq-length", "max-length", "context", "context-length", "ctx"),
    "--precision": ("dtype", "bf16", "fp8", "mixed-precision"),
}  # fmt: skip


def _usage(error: Exception, message: str, arguments: list[str], app: Any) -> str:
    """A mistake in the words of a command, with what would be accepted."""
    kind = type(error).__name__
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if kind == "BadOptionUsage":  # Typer says neither the command nor the parameter
        parameter = _parameter(app, arguments, str(getattr(error, "option_name", "")))
    help_text = getattr(parameter, "help", None)
    if kind in ("MissingParameter", "BadOptionUsage"):
        return f"{message} {help_text}" if help_text else message
    if kind == "BadParameter" and parameter is not None:
        return _refused(parameter.opts, str(getattr(error, "message", message)), arguments)
    if kind != "NoSuchOption" or context is None:
        return message
    name = str(getattr(error, "option_name", ""))
    bare = name.lstrip("-").replace("_", "-")
    command = f"meshwright {context.info_name}" if context.parent else "meshwright"
    parameters = context.command.params
    for one in parameters:
        if one.param_type_name == "argument" and one.name.replace("_", "-") == bare:
            return f"No such option: {name}; the {one.name} is given without one: {command} {one.name.upper()} …"
    known = {option for one in parameters for option in one.opts}
    meant = [option for option, names in _ELSEWHERE.items() if bare in names and option in known]
    meant = meant or [one for one in getattr(error, "possibilities", None) or () if one != "--help"]
    if meant:
        return f"No such option: {name} (Possible options: {', '.join(sorted(meant))})"
    return f"No such option: {name}; {command} --help lists them"


def _parameter(app: Any, arguments: list[str], name: str) -> Any:
    """The option of that name, of the command that the arguments begin with."""
    from typer.main import get_command

    commands = getattr(get_command(app), "commands", {})
    chosen = next((commands[word] for word in arguments if word in commands), None)
    return next((one for one in getattr(chosen, "params", ()) if name in one.opts), None)


def _refused(names: list[str], remedy: str, arguments: list[str]) -> str:
    """An option whose value is no number, or out of its range: name, value as typed, what is expected."""
    value = ""
    for at, word in enumerate(arguments):
        name, equals, behind = word.partition("=")
        if name in names:
            value = behind if equals else next(iter(arguments[at + 1 :]), "")
    remedy = remedy.removeprefix("Input ").rstrip(".")
    shown = f" = {value!r}" if value else ""
    return f"{names[-1]}{shown}: {remedy.split(', unable to')[0]}"


class Carried(Exception):
    """What ended a command, past Typer, which would exit 1 or 130 on its own."""

    def __init__(self, ended: Any) -> None:
        super().__init__()
        self.ended = ended


def _carrying(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with its own end carried out of it."""

    @functools.wraps(command)
    def carried(**given: Any) -> None:
        try:
            command(**given)
        except (KeyboardInterrupt, OSError) as error:
            raise Carried(error) from error

    return carried


def _of_output(error: OSError) -> bool:
    """Whether an error is of a stream without a name: standard output."""
    full = error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)
    return full or isinstance(error, BrokenPipeError)


def _stopped(by_sigterm: bool) -> int:
    _print_error("stopped")
    return 143 if by_sigterm else 130


def _our_fault(error: Exception) -> int:
    """Say where an unforeseen exception came from; all of it with MESHWRIGHT_TRACEBACK set."""
    if os.environ.get("MESHWRIGHT_TRACEBACK"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f for f in reversed(frames) if "meshwright" in f.filename), frames[-1])
    from meshwright.specs.errors import one_line

    _print_error(
        one_line(
            f"a fault of meshwright, not of your input: {type(error).__name__}: {str(error)[:300]} "
            f"({os.path.basename(where.filename)}:{where.lineno}); set MESHWRIGHT_TRACEBACK=1 for "
            "the whole trace"
        )
    )
    return 70


def _print_error(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"error: {message}", file=sys.stderr)


def _build_app(chosen: str | None) -> Any:
    """Return a Typer app with the chosen command loaded, or with stubs that only carry help."""
    import typer

    app = typer.Typer(
        name="meshwright",
        help="Plan, prove and run the parallel training of large models.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(
            False, "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ) -> None:
        pass

    for name, (module, help_line) in COMMANDS.items():
        if chosen == name:
            loaded = importlib.import_module(f"meshwright.cli.{module}")
            # Imported here: `--help` of the whole needs no option.
            from meshwright.cli.options import expand

            app.command(name, help=loaded.command.__doc__)(_carrying(expand(loaded.command)))
        else:
            app.command(name, help=help_line, short_help=help_line)(_stub())
    return app


def _stub() -> Callable[[], None]:
    def stub() -> None:
        raise AssertionError("a stub only carries help")

    return stub


def _print_version(wanted: bool) -> None:
    if wanted:
        import typer

        from meshwright import __version__

        print(f"meshwright {__version__}")
        raise typer.Exit
