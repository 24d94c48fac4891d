"""MLPerf's training submissions: a file of variables (`config_*.sh`), and the NeMo YAML that reads them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from meshwright.imports.formats import nemo
from meshwright.imports.interpolate import read_table
from meshwright.imports.names import PLANNED
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import device_named
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import text_of, unset
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.models import load_model

_MODELS = (
    (re.compile(r"llama2_70b"), "llama2-70b"),
    (re.compile(r"llama3?1?_?405b|llama31_405b"), "llama3.1-405b"),
    (re.compile(r"llama31_8b"), "llama3.1-8b"),
)
"""Models of the suite's benchmarks by the names of their folders."""
_OTHERS = (
    (re.compile(r"^(?:retinanet|resnet\d*|ssd\w*|mask_?rcnn|maskrcnn|single_stage_detector|unet_?3d|image_segmentation|object_detection)$"), "a vision model"),
    (re.compile(r"^(?:stable_diffusion|flux\w*|text_to_image)$"), "a diffusion model"),
    (re.compile(r"^dlrm\w*$|^recommendation\w*$"), "a recommender"), (re.compile(r"^bert$|^language_model$"), "an encoder"),
    (re.compile(r"^(?:rnnt|rnn_speech\w*)$"), "a model of speech"), (re.compile(r"^(?:rgat|gnn|graph_neural_network)$"), "a graph network"),
)  # fmt: skip
"""Benchmarks of the suite, by their folders, that train no decoder of text."""
_SIZES = {"8b": "llama3.1-8b", "405b": "llama3.1-405b"}


def is_config(script: Script, name: str) -> bool:
    """Whether a script only sets the variables of such a submission."""
    return bool(re.search(r"(?:^|/)config_[^/]*\.sh$", name)) and bool(script.value("DGXNNODES"))


def is_run(name: str) -> bool:
    """Whether a script is the one that such a submission starts and times."""
    return re.search(r"(?:^|/)run_and_time[^/]*\.sh$", name) is not None


def refuse_other(name: str, folder: Path | None) -> None:
    """Refuse a benchmark that trains no decoder of text, by the folders that its file lies in.

    Raises:
        SpecError: it is one.
    """
    places = (
        [part.lower() for part in (folder.resolve() / name).parts] if folder is not None else []
    )
    other = next((what for word, what in _OTHERS if any(word.search(part) for part in places)), "")
    if other:
        raise SpecError("file", name[-60:], f"trains {other}: {PLANNED}")


def read(script: Script, name: str, given: Given, folder: Path | None) -> Reading:
    """Return what a submission's variables make of the YAML beside them.

    Raises:
        SpecError: the YAML or the model is not known, or a value cannot be.
    """
    refuse_other(name, folder)
    path = _yaml(folder)
    if path is None:
        raise SpecError("file", name, "sets variables for a NeMo configuration (conf/*.yaml) that is not here: import it within its submission's folder")  # fmt: skip
    said = {key: text_of(value) for key, value in script.scope.variables.items() if not unset(text_of(value))}  # fmt: skip
    said |= dict(given.variables)
    data = read_table(path)
    size = said.get("MODEL_SIZE", "")
    where = "/".join(path.parts[-6:])
    named = _SIZES.get(size) or next((one for found, one in _MODELS if found.search(where)), "")
    if given.model is None and named:
        model = load_model(named)
        layers = said.get("OVERWRITTEN_NUM_LAYERS", "")
        if layers.isdigit() and int(layers) != model.layers:
            model = model.but(name="imported", layers=int(layers))
        given = replace(given, model=model)
    if isinstance(data.get("model"), dict):  # the checkpoint's, which trains without dropout
        data["model"] = {"hidden_dropout": 0.0, "attention_dropout": 0.0, **data["model"]}
    reading = nemo.read(data, replace(given, variables=tuple(said.items())), [])
    reading.format = "MLPerf configuration"
    reading.note(f"{path.name} is read with these variables", "conf")
    if named:
        reading.note(f"{named}, the benchmark's model, by its folder or MODEL_SIZE", "--model")
    own = device_named(name.rsplit("/", 1)[-1]) or device_named(said.get("DGXSYSTEM", ""))
    reading.likely = own or reading.likely
    return reading


def _yaml(folder: Path | None) -> Path | None:
    """The configuration that reads the variables: the one in `conf` that asks the environment for most.

    A submitter's folder of a further system may hold variables alone, beside the one that holds the code.
    """
    if folder is None:
        return None
    near = [(place / "conf").glob("*.yaml") for place in (folder, folder / "src", folder.parent)]
    siblings = folder.resolve().parent
    if siblings.name == "implementations":
        near.append(siblings.glob("*/conf/*.yaml"))
    for each in near:
        found = sorted(each)
        asked = {path: read_text(path, "conf").count("${oc.env:") for path in found[:20]}
        if asked and max(asked.values()) > 3:
            return max(asked, key=lambda path: asked[path])
    return None
