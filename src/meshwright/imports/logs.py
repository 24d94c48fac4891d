"""What a framework prints of its own configuration when it starts."""

from __future__ import annotations

from meshwright.exports import torchtitan_read
from meshwright.exports.megatron_read import log_flags
from meshwright.imports.formats import megatron
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading


def read(text: str, given: Given) -> Reading | None:
    """Return what a log says, None where the text is no log of a known framework.

    Raises:
        SpecError: the values in it contradict each other.
    """
    logged = log_flags(text)
    if logged is not None:
        flags, world = logged
        hybrid = bool(flags.get("is-hybrid-model") or flags.get("hybrid-layer-pattern"))
        # A log prints every argument with its default: only some of them are anybody's choice.
        chosen = {
            k: v
            for k, v in flags.items()
            if hybrid or not k.startswith(("mamba-", "linear-", "hybrid-", "dsa-"))
        }
        options = Options(chosen, "--")
        options.read |= set(chosen)
        reading = megatron.read(options, given, "Megatron-LM log")
        reading.devices = world
        return reading
    if "Running with configs:" in text:
        return _torchtitan(text, given)
    return None


def _torchtitan(text: str, given: Given) -> Reading | None:
    world = given.cluster.gpus if given.cluster is not None else 0
    found = torchtitan_read.read_log(text, world)
    return None if found is None else from_torchtitan(found, "torchtitan log")


def from_torchtitan(found: tuple[str, object, object], title: str) -> Reading:
    """A reading from the (preset, job, layout) that the exporter's own reader returns."""
    from meshwright.specs.job import Job
    from meshwright.specs.layout import Layout

    preset, job, layout = found
    assert isinstance(job, Job) and isinstance(layout, Layout)  # noqa: PT018
    return whole(title, job, layout, preset)


def whole(
    title: str, job: object, layout: object, preset: str = "", model: object = None
) -> Reading:
    """A reading of a complete job and layout."""
    from meshwright.specs.job import Job
    from meshwright.specs.layout import Layout
    from meshwright.specs.model import Model

    assert isinstance(job, Job) and isinstance(layout, Layout)  # noqa: PT018
    fields = layout.model_dump(exclude={"dp", "micro_batch", "shard"})
    return Reading(
        title,
        model=model if isinstance(model, Model) else None,
        model_name=preset,
        devices=layout.world,
        micro_batch=layout.micro_batch,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        shard=layout.shard,
        layout=fields,
        job=job.model_dump(exclude={"seq_len", "global_batch"}),
    )
