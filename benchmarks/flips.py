"""Do flip points flip? Random questions are planned, and planned again at every point that is printed.

    python benchmarks/flips.py [--problems 40] [--seed 0]

A point holds where the whole search, under its circumstances, chooses the layout and the framework that the
sentence names, or finds nothing where it says so. Questions are drawn from the presets: dense models and
mixtures of experts from 1 to 671 billion parameters, in even thirds with fine-tuning (all weights, adapters, 4
bits), even and uneven routing, up to 131,072 tokens, clusters of 1 to 64 nodes, any framework or the best of all.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, Literal

from meshwright.planner.flips import circumstances
from meshwright.planner.plan import plan
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.models import load_model

MODELS = (
    "llama3.2-1b", "qwen3-4b", "llama3-8b", "gemma3-27b", "mistral-nemo-12b", "qwen2.5-32b", "llama3-70b",
    "nemotron-h-56b", "llama3.1-405b",
)  # fmt: skip
MIXTURES = (
    "olmoe-1b-7b", "qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air", "gpt-oss-120b", "qwen3-next-80b-a3b",
    "qwen3-235b-a22b", "deepseek-v3",
)  # fmt: skip
TUNED = ("llama3-8b", "qwen3-14b", "gemma3-27b", "llama3-70b", "qwen3-30b-a3b", "gpt-oss-20b")
DEVICES = (
    "a100-40g",
    "a100-80g",
    "h100",
    "h200",
    "b200",
    "gb200",
    "h20",
    "mi300x",
    "mi355x",
    "rtx4090",
)
FRAMEWORKS = ("", "", "", "megatron", "torchtitan", "deepspeed", "nanotron", "fsdp", "nemo")
METHODS: tuple[Literal["full", "lora", "qlora"], ...] = ("full", "lora", "qlora")


def question(seed: int) -> tuple[str, Model, Cluster, Job]:
    """A random question, and how it reads: every third a dense model, mixture or fine-tuning."""
    drawn = random.Random(seed)
    kind = drawn.choice(("dense", "mixture", "tuned"))
    name = drawn.choice({"dense": MODELS, "mixture": MIXTURES, "tuned": TUNED}[kind])
    device = drawn.choice(DEVICES)
    nodes = drawn.choice((1, 2, 4) if kind == "tuned" else (1, 2, 4, 8, 16, 64))
    more: dict[str, Any] = {}
    if kind == "tuned":
        more["finetune"] = finetune_recipe(drawn.choice(METHODS))
    elif framework := drawn.choice(FRAMEWORKS):
        more["framework"] = framework
    if kind == "mixture" and drawn.random() < 0.3:
        more["routing"] = {"name": "power:0.5", "power": 0.5}
    job = Job.parse(
        {
            "seq_len": drawn.choice((2048, 4096, 8192, 32768, 131072)),
            "global_batch": drawn.choice((32, 96, 128, 256, 512, 1000)),
            **more,
        }
    )
    shape = f"{device}:{nodes}x{4 if device == 'gb200' else 8}"
    words = [name, *(str(one) for key, one in more.items() if key == "framework")]
    if kind == "tuned":
        words.append(more["finetune"].method)
    words += ["power routing"] if "routing" in more else []
    text = f"{', '.join(words)} on {shape}, {job.global_batch} x {job.seq_len}"
    return text, load_model(name), load_cluster(shape), job


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    held = points = planned = 0
    for seed in range(options.seed, options.seed + options.problems):
        text, model, cluster, job = question(seed)
        began = time.perf_counter()
        try:
            first = plan(model, cluster, job)
        except (DoesNotFitError, SpecError) as error:
            print(f"{text}: not planned: {str(error)[:160]}", flush=True)
            continue
        planned += 1
        for flip in first.flip_points:
            points += 1
            try:
                then = plan(model, *circumstances(flip, cluster, job), defend=False)
                found = then.job.framework, then.layout.label()
            except (DoesNotFitError, SpecError):
                found = flip.framework, "none"
            right = found == (flip.framework, flip.becomes)
            held += right
            if not right:
                print(f"  does not hold: {flip.sentence}; chosen: {' '.join(found)}", flush=True)
        print(
            f"{text}: {len(first.flip_points)} flip points, {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    print(f"{planned} of {options.problems} questions planned; {held} of {points} flip points hold")


if __name__ == "__main__":
    main()
