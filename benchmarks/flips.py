"""Do flip points flip? Random questions are planned, and planned again at every point that is printed.

    python benchmarks/flips.py [--problems 40] [--seed 0]

A point holds where the whole search, under its circumstances, chooses the layout and the framework that the
sentence names, or finds nothing where it says so. Questions are drawn from the presets: dense models and
mixtures of experts from 1 to 235 billion parameters, whole weights and adapters, clusters of 1 to 64 nodes,
any framework or the best of all.
"""

from __future__ import annotations

import argparse
import random
import time

from meshwright.planner.flips import circumstances
from meshwright.planner.plan import plan
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.finetune import Finetune
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.models import load_model

MODELS = (
    "llama3.2-1b", "qwen3-4b", "llama3-8b", "gemma2-9b", "mistral-nemo-12b", "qwen2.5-32b", "llama3-70b",
    "olmoe-1b-7b", "qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air", "gpt-oss-120b", "qwen3-235b-a22b",
)  # fmt: skip
DEVICES = ("a100-40g", "a100-80g", "h100", "h200", "b200", "mi300x", "rtx4090")
FRAMEWORKS = ("", "", "", "megatron", "torchtitan", "deepspeed", "nanotron", "fsdp")


def question(seed: int) -> tuple[str, Model, Cluster, Job]:
    """A random question, and how it reads."""
    drawn = random.Random(seed)
    name, device = drawn.choice(MODELS), drawn.choice(DEVICES)
    nodes, tuned = drawn.choice((1, 2, 4, 8, 16, 64)), drawn.random() < 0.15
    framework = "" if tuned else drawn.choice(FRAMEWORKS)
    job = Job(
        seq_len=drawn.choice((2048, 4096, 8192, 32768)),
        global_batch=drawn.choice((32, 96, 128, 256, 512, 1000)),
        **({"framework": framework} if framework else {}),
        **({"finetune": Finetune(method="lora")} if tuned else {}),
    )
    text = f"{name}{', lora' if tuned else ''} on {device}:{nodes}x8, {job.global_batch} x {job.seq_len}"
    return (
        f"{text}{', ' + framework if framework else ''}",
        load_model(name),
        load_cluster(f"{device}:{nodes}x8"),
        job,
    )


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
