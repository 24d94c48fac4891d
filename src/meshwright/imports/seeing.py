"""Multimodal models: whether a file trains their encoder, and what it is taken to see."""

from __future__ import annotations

from meshwright.costs.encoders import image_words
from meshwright.imports.reading import Reading
from meshwright.specs.encoders import USUAL_SIDE
from meshwright.specs.finetune import Finetune, finetune_recipe
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def train_encoder(reading: Reading, model: Model) -> None:
    """Add to a reading's job that the encoder does not train, and how large its images are, where the file says so.

    Weights under adapters do not train in any case.
    """
    encoder = model.encoder
    if encoder is None or not encoder.layers:
        return
    tune = finetune_recipe(reading.job.get("finetune")) or Finetune(method="full")
    if reading.encoder_frozen and not (tune.adapts or tune.in_turn or "vision" in tune.freeze):
        reading.job["finetune"] = tune.but(freeze=(*tune.freeze, "vision"))
    if reading.image_pixels and not encoder.fixed:
        share = reading.image_pixels / USUAL_SIDE**2
        reading.job["image_patches"] = max(round(encoder.patches * share), 1)


def say_images(reading: Reading, model: Model, job: Job) -> None:
    """Say what the encoder is taken to see: files name data sets, whose images nobody here has."""
    if words := image_words(model, job):
        reading.guess("images", f"the file does not say how many there are; {words}, is taken")
