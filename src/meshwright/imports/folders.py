"""A folder with the pieces of one run: the script that starts it, or the configurations it is made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from meshwright.exports.stamp import read_stamp
from meshwright.exports.targets import LAUNCHERS
from meshwright.imports import document_text
from meshwright.imports.complete import complete
from meshwright.imports.formats import accelerate, deepspeed, hf
from meshwright.imports.interpolate import merged
from meshwright.imports.reading import Given, Imported
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_MOST = 200
_STARTERS = (
    "run.sh",
    "train.sh",
    "launch.sh",
    "train.sbatch",
    "run.sbatch",
    "start.sh",
    "submit.sh",
    *(launcher.file for launcher in LAUNCHERS.values()),
)
"""Names of what starts a run, before everything beside it."""
_SUFFIXES = (".lsf", ".pbs", ".sh", ".sbatch", ".slurm", ".yaml", ".yml", ".json", ".toml", ".py")


def import_folder(folder: Path, given: Given) -> Imported:
    """Read the run that a folder holds.

    A script that starts a run counts first; then accelerate's, DeepSpeed's and the training
    arguments' files together; then GPT-NeoX's several files merged; then the one file that can be
    read.

    Raises:
        SpecError: nothing in it can be read, or it holds several runs (they are named).
    """
    from meshwright.imports.files import import_file

    named = folder / given.config if given.config else None
    if named is not None and named.parent == folder and named.is_file():
        return import_file(named, replace(given, config=""))
    here = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and p.is_file())
    files = [path for path in here if not _HOUSEKEEPING.fullmatch(path.name)][:_MOST]
    below: list[Path] = [] if files else _below(folder)
    if not files and not below:
        raise SpecError("folder", str(folder), "holds no script and no configuration")
    for name in _STARTERS:
        if (folder / name) in files:
            return import_file(folder / name, given)
    together = _together(folder, files, given)
    if together is not None:
        return together
    parts = {path for path in files if _is_part(path)}
    runs, refused = _runs([path for path in files if path not in parts], given)
    if not runs:
        below = below or _below(folder)
        runs, deeper = _runs([path for path in below if not _is_part(path)], given)
        refused = refused or deeper
    elif all(path.suffix == ".py" for path, _ in runs):
        # What starts a program says more of the run than its own defaults.
        starters = [path for path in _below(folder) if path.suffix in _SCRIPTS]
        runs = _runs(starters, given)[0] or runs
    if not runs:
        runs, _none = _runs(sorted(parts), given)
    runs = _of_their_own(runs)
    if len(runs) == 1:
        found = runs[0][1]
        if isinstance(found, SpecError):
            raise found
        return found
    if runs:
        names = ", ".join(str(path.relative_to(folder)) for path, _ in runs[:_NAMED])
        raise SpecError("folder", str(folder), f"holds several runs: name one of {names}")
    tried = len(files) + len(below)
    if refused is None or tried == 1:
        raise refused or SpecError("folder", str(folder), "holds nothing that can be read")
    raise SpecError("folder", str(folder), f"holds no training run that can be read: {tried} files were tried; of one, {str(refused)[-300:]}")  # fmt: skip


_SCRIPTS = (".sh", ".sbatch", ".slurm")
_HOUSEKEEPING = re.compile(
    r"\..*|pyproject\.toml|setup\.py|conftest\.py|package(?:-lock)?\.json|tsconfig\.json|mkdocs\.ya?ml|environment\.ya?ml|renovate\.json|noxfile\.py|__init__\.py|test_.*\.py|hubconf\.py"
)
"""Files at the root of a project that are about the project, not about a run."""
_NAMED = 6
_NO_RUNS = re.compile(
    r"(?:^|/)(?:\.|tests?/|docs?/|data/|eval\w*/|bench(?:marks?)?/|outputs?/|node_modules/|environment\.ya?ml$)"
)


def _runs(
    files: list[Path], given: Given
) -> tuple[list[tuple[Path, Imported | SpecError]], SpecError | None]:
    """The runs among files, those that ask for something included, and why one other is none: the first that is called a training."""
    runs: list[tuple[Path, Imported | SpecError]] = []
    refused: SpecError | None = None
    told = False
    from meshwright.imports.files import import_file

    for path in files:
        try:
            runs.append((path, import_file(path, given)))
        except SpecError as error:
            if error.field.startswith("--"):
                runs.append((path, error))
            tells = re.search(r"train|finetune|launch|(?:^|_)run", path.stem) is not None
            if refused is None or (tells and not told):
                refused, told = error, tells
        if len(runs) > _NAMED:
            break
    return runs, refused


def _is_part(path: Path) -> bool:
    """Whether a file is only what a launcher or an engine is given: a run needs more."""
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return False
    try:
        data = document_text.parsed(read_text(path), str(path))
    except SpecError:
        return False
    bare = accelerate.is_config(data) and not hf.is_trainer(data)
    return bare or deepspeed.is_config(data)


def _below(folder: Path) -> list[Path]:
    """Scripts, then configurations, in folders up to three below; no tests, data or results."""
    found = [
        path
        for pattern in ("*/*", "*/*/*", "*/*/*/*")
        for path in sorted(folder.glob(pattern))
        if path.suffix.lower() in _SUFFIXES
        and path.is_file()
        and not _NO_RUNS.search(str(path.relative_to(folder)))
    ]
    return sorted(found, key=lambda path: path.suffix not in _SCRIPTS)[:_MOST]


def _of_their_own(
    runs: list[tuple[Path, Imported | SpecError]],
) -> list[tuple[Path, Imported | SpecError]]:
    """Runs without the configurations that another's script names: those are part of that one."""
    texts = {path: read_text(path) for path, _ in runs if path.suffix in _SCRIPTS}
    named = {
        path
        for path, _ in runs
        for other, text in texts.items()
        if other != path and path.name in text
    }
    return [one for one in runs if one[0] not in named]


def _together(folder: Path, files: list[Path], given: Given) -> Imported | None:
    """The run that an accelerate, a DeepSpeed and a training-arguments file make together."""
    launcher: dict[str, object] | None = None
    engine: dict[str, object] | None = None
    arguments: dict[str, object] | None = None
    several = False
    neox: dict[str, object] = {}
    stamp = read_stamp("")
    for path in files:
        if path.suffix.lower() not in (".yaml", ".yml", ".json"):
            continue
        try:
            text = read_text(path)
            data = document_text.parsed(text, str(path))
        except SpecError:
            continue
        if hf.is_trainer(data):
            several = arguments is not None
            arguments = arguments or data
        elif accelerate.is_config(data) and launcher is None:
            launcher, stamp = data, read_stamp(text)
        elif deepspeed.is_config(data) and engine is None:
            engine = data
        elif path.suffix.lower() in (".yml", ".yaml") and _is_neox(data):
            neox = merged(neox, data)
    if arguments is not None and not several and (launcher or engine):
        return _arguments(arguments, launcher, engine, given, folder)
    if neox and any(str(key).replace("-", "_") == "num_layers" for key in neox):
        from meshwright.imports.formats import neox as reader

        return complete(reader.read(neox, given), given, stamp)
    return None


def _is_neox(data: dict[str, object]) -> bool:
    keys = {str(key).replace("-", "_") for key in data}
    return bool(
        keys
        & {
            "num_layers",
            "pipe_parallel_size",
            "train_micro_batch_size_per_gpu",
            "data_path",
            "vocab_file",
        }
    ) and (not keys & {"model", "modules", "base_model"})


def _arguments(
    arguments: dict[str, object],
    launcher: dict[str, object] | None,
    engine: dict[str, object] | None,
    given: Given,
    folder: Path,
) -> Imported:
    from meshwright.imports.options import Options, flattened
    from meshwright.imports.reading import Reading

    reading = Reading("training arguments with their launcher", options=dict(hf.EDITS))
    if launcher is not None:
        accelerate.apply(dict(launcher), reading, given, folder)
    if engine is not None:
        deepspeed.apply(dict(engine), reading, given)
    values = dict(arguments)
    if engine is not None:
        values.pop("deepspeed", None)
    zero = reading.layout.get("zero")
    reading = hf.fill(Options(flattened(values)), reading, given, folder)
    if zero is not None:
        reading.layout["zero"] = zero
    return complete(reading, given, read_stamp(""))
