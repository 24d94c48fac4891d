"""A folder with the pieces of one run: the script that starts it, or the configurations it is made of."""

from __future__ import annotations

from pathlib import Path

from meshwright.exports.stamp import read_stamp
from meshwright.imports import accelerate, deepspeed, documents, hf
from meshwright.imports.complete import complete
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
)
_SUFFIXES = (".sh", ".sbatch", ".slurm", ".yaml", ".yml", ".json", ".toml", ".py")


def import_folder(folder: Path, given: Given) -> Imported:
    """Read the run that a folder holds.

    A script that starts a run counts first; then accelerate's, DeepSpeed's and the training
    arguments' files together; then GPT-NeoX's several files merged; then the one file that can be
    read.

    Raises:
        SpecError: nothing in it can be read, or it holds several runs (they are named).
    """
    from meshwright.imports.files import import_file

    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and p.is_file())[
        :_MOST
    ]
    if not files:
        raise SpecError("folder", str(folder), "holds no script and no configuration")
    for name in _STARTERS:
        if (folder / name) in files:
            return import_file(folder / name, given)
    together = _together(folder, files, given)
    if together is not None:
        return together
    found: list[tuple[Path, Imported]] = []
    refused: SpecError | None = None
    asked: SpecError | None = None
    for path in files:
        try:
            found.append((path, import_file(path, given)))
        except SpecError as error:
            asked = error if error.field.startswith("--") else asked
            refused = refused or error
        if len(found) > 6:
            break
    if len(found) == 1:
        return found[0][1]
    if found:
        names = ", ".join(path.name for path, _ in found[:6])
        raise SpecError("folder", str(folder), f"holds several runs: name one of {names}")
    raise asked or refused or SpecError("folder", str(folder), "holds nothing that can be read")


def _together(folder: Path, files: list[Path], given: Given) -> Imported | None:
    """The run that an accelerate, a DeepSpeed and a training-arguments file make together."""
    launcher: dict[str, object] | None = None
    engine: dict[str, object] | None = None
    arguments: dict[str, object] | None = None
    neox: dict[str, object] = {}
    stamp = read_stamp("")
    for path in files:
        if path.suffix.lower() not in (".yaml", ".yml", ".json"):
            continue
        try:
            text = read_text(path)
            data = documents._parsed(text, str(path))
        except SpecError:
            continue
        if hf.is_trainer(data) and arguments is None:
            arguments = data
        elif accelerate.is_config(data) and launcher is None:
            launcher, stamp = data, read_stamp(text)
        elif deepspeed.is_config(data) and engine is None:
            engine = data
        elif path.suffix.lower() in (".yml", ".yaml") and _is_neox(data):
            neox = merged(neox, data)
    if arguments is not None and (launcher or engine):
        return _arguments(arguments, launcher, engine, given, folder)
    if neox and any(str(key).replace("-", "_") == "num_layers" for key in neox):
        from meshwright.imports import neox as reader

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
