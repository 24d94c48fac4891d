"""Refuse, before any process starts, whatever would fail later; then make the run's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from meshwright.engine.checkpoints import manifest
from meshwright.engine.checkpoints.checkpoint import clear_partial
from meshwright.engine.data import BYTE_VOCABULARY
from meshwright.engine.foreign.running import check_foreign_run, count, make_folder
from meshwright.engine.hugging_face import check_init
from meshwright.engine.model.export import check_export
from meshwright.engine.parallel.guards import check, check_job
from meshwright.engine.parallel.orders import splits_backward
from meshwright.engine.proof.shrink import parameters
from meshwright.engine.ranks.claim import claim
from meshwright.engine.ranks.preflight import (
    check_disk,
    check_fresh,
    check_memory,
    check_states,
    check_vocabulary,
)
from meshwright.engine.recipe import OPTIMIZERS, SCHEDULES
from meshwright.engine.resuming import check_same, data_changes, data_facts
from meshwright.engine.run import Run, corpus_of, precision_of
from meshwright.engine.validation import Validation
from meshwright.engine.watch.profile import Window
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import counted


def check_run(run: Run, ranks: int | None = None) -> None:
    """Refuse, before any process starts, whatever would fail later.

    Raises:
        SpecError: naming the field and the way out.
    """
    check(
        run.model, run.layout, global_batch=run.job.global_batch, seq_len=run.job.seq_len,
        csv=run.csv, foreign=run.foreign,
    )  # fmt: skip
    if run.foreign is not None:
        check_foreign_run(run)
    if ranks is not None and ranks != run.layout.world:
        raise SpecError(
            "layout",
            run.layout.label(),
            f"needs {counted(run.layout.world, 'rank')}, {ranks} were started",
        )
    check_job(run.job)
    precision_of(run.job)
    _check_recipe(run)
    _check_data(run)
    if run.init and run.foreign is None:
        check_init(run)
    if run.compile and run.layout.pp > 1 and splits_backward(run.layout, run.csv):
        # The compiled graph is one piece: its weight gradients cannot be asked for on their own.
        raise SpecError(
            "compile",
            True,
            "compiled layers cannot split their backward pass as this schedule "
            "does; use schedule = 1f1b or interleaved, or leave --compile out",
        )
    if run.profile:
        Window.parse(run.profile, run.steps)
    if run.resume:
        _check_resume(run)
    if ranks is None:
        check_memory(run.layout.world)
        check_states(
            weights_of(run), run.model, run.job, run.layout, field="model",
            way_out="choose a smaller model, or torchrun on more machines",
        )  # fmt: skip


def _check_recipe(run: Run) -> None:
    if run.job.optimizer.name not in OPTIMIZERS:
        raise SpecError("optimizer", run.job.optimizer.name, f"one of {', '.join(OPTIMIZERS)}")
    if run.lr_schedule not in SCHEDULES:
        raise SpecError("lr_schedule", run.lr_schedule, f"one of {', '.join(SCHEDULES)}")
    if not all(0 <= beta < 1 for beta in run.betas):
        raise SpecError("betas", run.betas, "two numbers from 0 to below 1")


def _check_data(run: Run) -> None:
    """The training data and the held-out ones can be read, and the vocabulary has all their tokens."""
    if run.end_token >= run.model.vocab:
        raise SpecError("end_token", run.end_token, f"is beyond the vocabulary, {run.model.vocab}")
    corpus = corpus_of(run)
    if corpus.is_text and run.model.vocab < BYTE_VOCABULARY:
        raise SpecError(
            "vocab", run.model.vocab, f"text is read as bytes, which needs {BYTE_VOCABULARY}"
        )
    if not corpus.is_text:
        check_vocabulary(corpus, run.model.vocab)
    Validation(run)


def _check_resume(run: Run) -> None:
    path, _passed_over = manifest.newest_good(run.resume)
    content = manifest.read(path)
    if content["model"] != run.model.plain():
        raise SpecError("resume", str(path), "is a checkpoint of another model")
    if run.foreign is None and content.get("transformers"):
        raise SpecError("resume", str(path), "was trained by transformers' modules")
    changes = data_changes(content, data_facts(run, corpus_of(run)))
    check_same(str(path), changes, allowed=run.allow_changes)


def prepare_out(run: Run) -> Path:
    """Make the run's folder; clear what a save that was cut off has left there.

    Raises:
        SpecError: it cannot be made, has too little room, or holds an earlier run's checkpoints.
    """
    out = Path(run.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if os.environ.get("RANK", "0") == "0":  # the process that records; others only look in
            claim(out)
        if run.generation == 0:  # an earlier run's last collectives
            shutil.rmtree(out / "flight", ignore_errors=True)
    except OSError as error:
        raise SpecError("out", run.out, f"cannot be made ({error.strerror})") from None
    clear_partial(out)
    if run.export:
        make_folder(run.export) if run.foreign else check_export(run.model, run.export)
    if run.save_every:
        values = {"adamw": 3, "sgd-momentum": 2}.get(run.job.optimizer.name, 1)
        at_once = min(run.keep, run.steps // run.save_every) + 1
        check_disk(out, weights_of(run), values * precision_of(run.job).master.itemsize, at_once)
        if not run.resume:
            check_fresh(out)
    return out


def weights_of(run: Run) -> int:
    """Parameters of the whole model."""
    return parameters(run.model) if run.foreign is None else count(run.foreign)
