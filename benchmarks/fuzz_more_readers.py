"""More readers for benchmarks/fuzz.py: what plan, calibrate, prove and imports read beside a plan."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from fuzz_readers import Reader, import_any, read_plan

SETTLED = {
    "date": "2026-01-01", "where": "here", "confidence": 0.95, "seconds": 12.5,
    "sentence": "dp2 is the fastest",
    "runs": [
        {"layout": {"dp": 2}, "outcome": "fastest", "predicted_s": 0.1, "measured_s": 0.12,
         "error": 0.01, "steps": 9, "peak_memory_bytes": 1e9, "note": ""},
        {"layout": {"tp": 2}, "outcome": "failed", "predicted_s": 0.2, "note": "a rank died"},
    ],
}  # fmt: skip

PROGRAM = """import argparse
from dataclasses import dataclass, field
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
from transformers import HfArgumentParser, AutoModelForCausalLM
NAME = "meta-llama/Llama-3.2-1B"
@dataclass
class Args:
    rank: int = field(default=16)
    rate: float = 2e-4
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2 * 2)
given = parser.parse_args()
sizes = {"length": [512, 1024][1], "steps": sum(range(4))}
for i in range(3):
    sizes["steps"] += i
model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype="bfloat16")
config = SFTConfig(per_device_train_batch_size=given.batch, gradient_accumulation_steps=8 // 2,
                   max_length=sizes["length"], bf16=True, output_dir=f"out-{NAME.split('/')[-1]}")
trainer = SFTTrainer(model=model, args=config, peft_config=LoraConfig(r=Args().rank, lora_alpha=32))
trainer.train()
"""

HYDRA = """defaults:
  - _self_
  - model: small
model_name_or_path: meta-llama/Llama-3.2-1B
trainer:
  nnodes: 2
  n_gpus_per_node: ${oc.env:GPUS,8}
actor_rollout_ref:
  model: {path: "${model_name_or_path}"}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 2, strategy: fsdp}
data: {train_batch_size: 256, max_prompt_length: 512, max_response_length: 512}
"""

SHELL = """#!/bin/bash
set -euo pipefail
source ./env.sh
case "${SIZE:-8b}" in 8b) TP=1 ;; 70b) TP=8 ;; *) exit 1 ;; esac
for N in 1 2 3; do LAST=$((N * 2)); done
while [ $LAST -gt 4 ]; do LAST=$((LAST - 1)); done
function args() { local x="$1"; echo "--tensor-model-parallel-size $x"; }
cat > ds.json <<EOF
{"zero_optimization": {"stage": $LAST}}
EOF
NODES=$(echo "$LAST 2" | awk '{print $2}')
torchrun --nnodes "$NODES" --nproc_per_node ${GPUS:=8} pretrain_gpt.py $(args $TP) \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16
"""


def lengths() -> list[tuple[str, bytes]]:
    """Examples by number, tokens, ids and text, and a histogram."""
    lines = [
        {"length": 12},
        7,
        {"input_ids": [1, 2, 3]},
        {"text": "some words"},
        {"messages": [{"content": "x"}]},
    ]
    return [
        ("lengths.jsonl", "\n".join(json.dumps(line) for line in lines).encode()),
        ("histogram.json", b'{"128": 10, "256": 3.5, "1024": 2}'),
    ]


def routing() -> list[tuple[str, bytes]]:
    """Counts in every form that `--routing` takes."""
    record = {"kind": "routing", "step": 3, "counts": [[4, 2, 1, 1], [3, 3, 1, 1]]}
    return [
        ("counts.csv", b"layer,expert_0,expert_1,expert_2,expert_3\n0,4,2,1,1\n1,3,3,1,1\n"),
        ("counts.json", b"[[4, 2, 1, 1], [3, 3, 1, 1]]"),
        ("counts.txt", b"4\n2\n1\n1\n"),
        ("metrics.jsonl", (json.dumps(record) + "\n").encode()),
    ]


def history() -> list[tuple[str, bytes]]:
    """Two runs, as a local history keeps them."""
    line = {
        "date": "2026-01-01", "step_time_s": 0.5, "peak_memory_bytes": 1e9, "layout": {"dp": 2},
        "model": {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96,
                  "vocab": 128},
        "job": {"seq_len": 64, "global_batch": 4},
    }  # fmt: skip
    return [("history.jsonl", (json.dumps(line) + "\n").encode() * 2)]


@functools.cache
def recordings() -> list[tuple[str, bytes]]:
    """Two steps of one matrix, as `meshwright.probe` writes them."""
    import torch

    from meshwright import probe

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.record(model, optimizer, out=folder) as recorder:
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 4)).square().mean()
                loss.backward()
                optimizer.step()
                recorder.step(loss=loss.item())
        return [(one.name, one.read_bytes()) for one in sorted(Path(folder).iterdir())]


def programs() -> list[tuple[str, bytes]]:
    """A program around TRL, as a file and a notebook; a script with loops; a Hydra configuration."""
    cells = [{"cell_type": "code", "source": PROGRAM.splitlines(keepends=True), "outputs": []}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return [
        ("train.py", PROGRAM.encode()),
        ("train.ipynb", json.dumps(notebook).encode()),
        ("run.sh", SHELL.encode()),
        ("hydra.yaml", HYDRA.encode()),
    ]


def settled_plan() -> list[tuple[str, bytes]]:
    """A plan that keeps a race of its finalists."""
    from fuzz_readers import _plan

    return [("plan.json", json.dumps(_plan() | {"settled": SETTLED}).encode())]


def read_lengths(path: Path) -> Any:
    from meshwright.specs.length_files import load_lengths

    found = load_lengths(path)
    return [len(found.tokens), sum(found.tokens), max(found.tokens)]


def read_routing(path: Path) -> Any:
    from meshwright.specs.routing import parse_routing

    return parse_routing(str(path)).plain()


def read_past(path: Path) -> Any:
    from meshwright.measure.history import read_history

    return [[past.model.plain(), past.layout.plain(), past.step_s] for past in read_history(path)]


def judge(path: Path) -> Any:
    from meshwright.prove.verdict import prove

    return prove(path, path).sentence


READERS = [
    Reader("lengths", lengths, read_lengths),
    Reader("routing", routing, read_routing),
    Reader("history", history, read_past),
    Reader("recordings", recordings, judge, lambda: dict(recordings()), ".", needs="torch",
           prepare=recordings),
    Reader("programs", programs, import_any, lambda: {"env.sh": b"export GPUS=4\n", "model/small.yaml": b"hidden: 64\n"}, weight=2),
    Reader("settled plan", settled_plan, read_plan),
]  # fmt: skip
"""What is read beside a plan, and the forms of other people's programs that are followed."""
