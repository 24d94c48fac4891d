"""Run every export that has a CPU path for five steps, and compare the layout that it reports.

    python benchmarks/export_runs.py [--only NAME] [--steps 5] [--write docs/export_runs.md]

Each plan is cut down: a small model on two or four processes of this machine, the layout's degrees
kept. The layout is read back from the framework's own objects while it runs
(`export_probe.py`); what no CPU can run is checked as far as its own code goes here, and the page
says how far: parsed, model built, layout read back, stepped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import export_tuning_run
import export_verl_run
from meshwright.costs.step import estimate
from meshwright.exports.canonical import canonical
from meshwright.exports.inputs import of_tuner
from meshwright.exports.launch import Command
from meshwright.exports.targets import FINETUNERS, STARTED, export
from meshwright.specs import Job, Layout, Model, Plan, load_cluster, load_model
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import OPTIMIZERS, RECIPES

HERE = Path(__file__).resolve().parent
GRACE_S = 40.0
"""In which a launcher that is asked to end ends its ranks."""
LIMIT_S = 900
KEPT = "kept"
"""The folder of a script's checkpoints."""
SCRIPTS = ("fsdp", "deepspeed", "accelerate", "trainer", "lightning")
"""Targets whose program is a script of our own, which saves and goes on."""
TINY = Model(name="tiny", layers=2, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=96, vocab=160)
VALIDATE = Path(os.environ.get("MESHWRIGHT_VALIDATE") or Path(sys.prefix) / "validate")
OPERATORS = VALIDATE / "operators"
"""What DeepSpeed compiles at its first start, kept apart from what others compile."""


@dataclass
class Run:
    """One export, what of its layout is compared, and what became of it."""

    target: str
    layout: dict[str, Any]
    script: str = "train.py"
    compared: tuple[str, ...] = ("dp", "zero")
    environment: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    model: str = ""
    method: str = ""
    precision: str = "fp32"
    optimizer: str = "adamw"
    steps: int = 0
    reported: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    missing: str = ""
    resumed: str = ""
    """Whether the run went on from a checkpoint as if nobody had stopped it; else what was otherwise."""

    def plan(self) -> Plan:
        """The cut-down plan, priced."""
        layout = Layout(micro_batch=2, **self.layout)
        cluster = load_cluster(f"cpu:1x{layout.world}")
        job = (
            self._tuning()
            if self.method
            else Job(
                seq_len=32,
                global_batch=8,
                precision=RECIPES[self.precision],
                optimizer=OPTIMIZERS[self.optimizer],
            )
        )
        model = load_model(self.model) if self.model else TINY
        priced = estimate(model, cluster, job, layout)
        return Plan(
            model=model, cluster=cluster, job=job, layout=layout, estimate=priced, fits=priced.fits
        )

    def _tuning(self) -> Job:
        adapters = {"rank": 4, "alpha": 8, "targets": ["q", "k", "v", "o"]}
        recipe = {"method": self.method} | (adapters if self.method != "full" else {})
        precision = "bf16" if self.precision == "fp32" else self.precision
        return Job(
            framework=self.target, seq_len=512, global_batch=8, precision=RECIPES[precision],
            finetune=finetune_recipe(recipe), optimizer=OPTIMIZERS[self.optimizer],
        )  # fmt: skip


TITAN = ("dp", "tp", "pp", "cp", "zero", "recompute")
MEGATRON = ("dp", "tp", "pp", "zero", "sequence_parallel", "recompute", "accumulation")
MEGATRONS = ("megatron-core-0.19.2", "triton-3.6.0")
TUNED = ("dp", "zero", "micro_batch", "accumulation", "recompute", "rank")
TUNERS = {
    "trl": ("trl-1.16.0", "tuning-runs"),
    "axolotl": ("axolotl-needs", "axolotl-0.21.0", "tuning-runs"),
    "llama-factory": ("llamafactory-needs", "llamafactory-0.9.5", "tuning-runs"),
    "torchtune": ("torchtune-0.6.1", "tuning-runs"),
    "verl": export_verl_run.FOLDERS,
}
"""Folders of `make validate-more` with each tool and what its training imports."""


def tuned(target: str, method: str, narrow: bool = False, **layout: Any) -> Run:
    """A run of a tool for fine-tuning: a checkpoint of two layers under a published model's name; `narrow`: 16 bits alone."""
    return Run(
        target, {"dp": 2, **layout}, compared=TUNED, folders=TUNERS[target], model="qwen2.5-0.5b",
        method=method, precision="pure-bf16" if narrow else "fp32", optimizer="adamw-bf16" if narrow else "adamw",
        environment={"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "HF_HOME": "hf",
                                    "DISABLE_VERSION_CHECK": "1",
                                    **({"ACCELERATE_USE_CPU": "true", "AXOLOTL_DO_NOT_TRACK": "1"} if target == "axolotl" else {})},
    )  # fmt: skip


TITANS = ("torchtitan-0.3.0", "torchtitan-needs", "triton-3.6.0")
RUNS = (
    Run("fsdp", {"dp": 2, "tp": 2, "zero": 2, "sequence_parallel": True}, "train_fsdp.py", ("dp", "tp", "zero")),
    Run("fsdp", {"dp": 2, "zero": 3, "recompute": "full"}, "train_fsdp.py", ("dp", "tp", "zero")),
    Run("deepspeed", {"dp": 2, "zero": 1}, compared=("dp", "zero", "micro_batch", "accumulation"), environment={"DS_ACCELERATOR": "cpu"}),
    Run("deepspeed", {"dp": 2, "zero": 3}, compared=("dp", "zero", "micro_batch", "accumulation"), environment={"DS_ACCELERATOR": "cpu"}),
    Run("deepspeed", {"dp": 2, "zero": 3}, compared=("dp", "zero", "updated_bytes"), precision="pure-bf16", optimizer="adamw-bf16", environment={"DS_ACCELERATOR": "cpu"}),
    Run("deepspeed", {"dp": 2, "zero": 2, "offload": ("optimizer",)}, compared=("dp", "zero", "micro_batch", "accumulation"), environment={"DS_ACCELERATOR": "cpu"}),
    Run("deepspeed", {"pp": 2}, compared=("dp", "pp", "zero", "micro_batch"), environment={"DS_ACCELERATOR": "cpu"}),
    Run("accelerate", {"dp": 2}, compared=("dp", "tp", "zero"), environment={"ACCELERATE_USE_CPU": "true"}),
    Run("accelerate", {"dp": 2, "zero": 2}, compared=("dp", "tp", "zero"), environment={"ACCELERATE_USE_CPU": "true"}),
    Run("accelerate", {"dp": 2, "zero": 3, "recompute": "full"}, compared=("dp", "tp", "zero"), environment={"ACCELERATE_USE_CPU": "true"}),
    Run("accelerate", {"tp": 2, "dp": 2, "zero": 3}, compared=("dp", "tp", "cp", "zero"), environment={"ACCELERATE_USE_CPU": "true"}),
    Run("trainer", {"dp": 2}, "train_trainer.py", ("dp", "zero", "micro_batch", "accumulation")),
    Run("trainer", {"dp": 2, "zero": 2}, "train_trainer.py", ("dp", "zero", "micro_batch", "accumulation")),
    Run("trainer", {"dp": 2, "zero": 3, "recompute": "full"}, "train_trainer.py", ("dp", "zero", "micro_batch", "accumulation")),
    Run("lightning", {"dp": 2, "zero": 3}, "train_lightning.py", ("dp", "zero"), folders=("lightning-2.6.6",)),
    Run("lightning", {"cp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}, "train_lightning.py", ("tp", "zero"), folders=("lightning-2.6.6",)),
    Run("megatron", {"dp": 2, "tp": 2, "zero": 1}, compared=MEGATRON, folders=MEGATRONS),
    Run("megatron", {"dp": 2, "tp": 2, "sequence_parallel": True, "recompute": "full"}, compared=MEGATRON, folders=MEGATRONS),
    Run("megatron", {"dp": 2, "pp": 2}, compared=MEGATRON, folders=MEGATRONS),
    Run("torchtitan", {"dp": 2, "zero": 2}, model="llama3.1-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "recompute": "full"}, model="llama3.1-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "pp": 2}, model="llama3.1-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero": 2}, model="llama3.1-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "pp": 2, "virtual_stages": 2, "schedule": "zb-v"}, model="llama3.1-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "zero": 3}, model="qwen3-4b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "pp": 2}, model="qwen3-8b", compared=TITAN, folders=TITANS),
    Run("torchtitan", {"dp": 2, "ep": 2, "zero": 3}, model="qwen3-30b-a3b", compared=(*TITAN, "ep"), folders=TITANS),
    Run("torchtitan", {"dp": 2, "ep": 2, "zero": 2}, model="deepseek-v2-lite", compared=(*TITAN, "ep"), folders=TITANS),
    Run("torchtitan", {"dp": 2, "zero": 3}, model="llama3.1-8b", compared=TITAN, folders=TITANS, environment={"COMPILED": "1"}),
    tuned("trl", "lora", recompute="full"), tuned("trl", "full", zero=2), tuned("trl", "full", zero=3),
    tuned("axolotl", "lora", recompute="full"), tuned("axolotl", "full", narrow=True, zero=3),
    tuned("llama-factory", "lora", recompute="full"), tuned("llama-factory", "full", zero=2),
    tuned("torchtune", "lora", zero=3, recompute="full"), tuned("torchtune", "full", zero=3),
    tuned("verl", "lora", zero=3, recompute="full"), tuned("verl", "full", zero=2),
)  # fmt: skip
OWN_PROGRAMS = {"torchtitan": "export_titan_run.py", "megatron": "export_megatron_run.py"}
"""Programs that run an export's files by the framework's own trainer, with what a CPU lacks stood in for."""
NOT_HERE = (
    ("maxtext", "its own configuration (0.2.5) reads every field; mesh and batches read back", "TPUs"),
    ("megatron-bridge", "its recipe made, overridden, finalised and validated; layout and kernels read back", "needs Transformer Engine"),
    ("primus", "its YAML read back here", "starts Megatron-LM, which needs a GPU"),
    ("axolotl", "its schema (0.21.0) reads every field", "sharded by DeepSpeed: told a CPU, accelerate makes no DeepSpeed plugin, and transformers' Trainer then ends"),
    ("accelerate", "context parallelism: ranks, mesh and each rank's part of the rows; ends at the first attention", "PyTorch's ring has no rule for the kernel that computes attention on a CPU"),
    ("trl", "context parallelism: its words read back, split by accelerate", "as accelerate's"),
    ("accelerate", "weights and optimizer in host memory: words read back", "FSDP2 pins host memory for an accelerator; the Trainer and torchtitan alike"),
    ("torchtitan", "context parallelism: recipe, meshes and rows read; ends at the first attention", "as accelerate's"),
    ("nanotron", "its YAML parser accepts every field; layout read back", "needs flash-attn"),
)  # fmt: skip


def step(run: Run, steps: int) -> None:
    """Export, run, and take what the framework reported and how many losses it wrote."""
    plan = run.plan()
    absent = [folder for folder in run.folders if not (VALIDATE / folder).is_dir()]
    if absent:
        run.missing = f"not installed here: `make validate-more` brings {', '.join(absent)}"
        return
    for lock in OPERATORS.glob(
        "*/lock"
    ):  # of a compilation that was ended: torch would wait for it
        lock.unlink()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(plan, run.target).write(folder)
        if run.method:
            export_tuning_run.prepare(
                folder, run.target, plan.model.source.removeprefix("config.json of ")
            )
        report, losses = folder / "report.json", folder / "losses.json"
        words = _words(run, plan, report, losses, steps)
        # Megatron's folder is put in front by its program, after what stands in for its kernels.
        path = [str(VALIDATE / one) for one in run.folders if one != MEGATRONS[0]]
        path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        environment = {
            **_accelerate_words(folder / "accelerate.yaml"),
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_EXTENSIONS_DIR": str(OPERATORS),
            "HF_ASSETS_PATH": name,  # no tokenizer is read: the rows are made
            "DATA": "mock",
            "CHECKPOINTS": str(folder / KEPT),
            "MEGATRON_CORE": str(VALIDATE / MEGATRONS[0]),
            "PYTHONPATH": os.pathsep.join(path),
            **run.environment,
        }
        launcher = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(plan.layout.world),
            "--master-addr", "127.0.0.1", "--master-port", str(free_port()), *words,
        ]  # fmt: skip
        run.reason = launched(launcher, folder, environment, LIMIT_S)
        if run.reason:
            return
        run.reported = json.loads(report.read_text())
        run.steps = len(json.loads(losses.read_text())) if losses.is_file() else steps
        if run.target in SCRIPTS:
            run.resumed = resumed(folder, losses, launcher, environment, steps)
            run.reason = "" if run.resumed == "yes" else run.resumed
    layout = canonical(plan.layout, plan.model)
    tune = plan.job.finetune
    wanted = layout.model_dump() | {
        "accumulation": layout.micro_batches(plan.job.global_batch),
        "rank": tune.rank if tune is not None and tune.adapts else 0,
        "updated_bytes": plan.job.precision.master_bytes or plan.job.precision.parameter_bytes,
    }
    wrong = [name for name in run.compared if run.reported.get(name) != wanted[name]]
    if wrong:
        run.reason = "; ".join(
            f"{name}: reports {run.reported.get(name)}, planned {wanted[name]}" for name in wrong
        )


def resumed(
    folder: Path, losses: Path, launcher: list[str], environment: dict[str, str], steps: int
) -> str:
    """Take the last checkpoint away, start the run again, and compare the losses of the steps that it makes anew."""
    whole, saved = json.loads(losses.read_text()), folder / KEPT
    last = next(
        path for path in saved.iterdir() if re.fullmatch(rf"\w+-{steps}(\.ckpt)?", path.name)
    )
    last.rename(folder / "away")
    if (saved / "latest").is_file():
        (saved / "latest").write_text(f"step-{steps - 2}")
    again = [
        str(free_port()) if one == launcher[launcher.index("--master-port") + 1] else one
        for one in launcher
    ]
    if failed := launched(again, folder, environment, LIMIT_S):
        return f"does not go on: {failed}"
    found = json.loads(losses.read_text())
    apart = max(abs(a - b) for a, b in zip(whole[-2:], found, strict=True))
    return "yes" if apart < 1e-5 else f"goes on with losses {apart:.1e} apart"


def launched(words: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> str:
    """Start ranks and wait for their end; returns why they failed, or nothing.

    Ranks would outlive a launcher that is killed and hold its pipes open: they write to a file, and the
    launcher is asked to end, which ends them.
    """
    with (folder / "errors.txt").open("w+") as errors:
        ranks = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            ranks.wait(limit_s)
        except subprocess.TimeoutExpired:
            ranks.terminate()
            try:
                ranks.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                ranks.kill()
            return f"no end within {limit_s:.0f} s"
        if not ranks.returncode:
            return ""
        errors.seek(0)
        lines = errors.read().strip().splitlines() or ["no output"]
    named = [one for one in lines if re.search(r"\w*(?:Error|Exception): ", one)]
    return (named or lines)[0 if named else -1][:200]


def _words(run: Run, plan: Plan, report: Path, losses: Path, steps: int) -> list[str]:
    """The program that starts the exported files and notes what their framework says."""
    if run.target in FINETUNERS:
        words = STARTED[run.target].words(plan)
        command = Command(words, run.target, inputs=of_tuner(run.target))
        env = {
            **os.environ,
            "TORCHTUNE": str(VALIDATE / TUNERS["torchtune"][0]),
            "DATA": export_tuning_run.DATA[run.target],
        }
        told = f"{command.asked()}printf '%s\\0' {' '.join((command.text(), *command.filled()))}"
        text = subprocess.check_output(["bash", "-c", told], text=True, env=env)
        program = str(HERE / "export_tuning_run.py")
        return [program, run.target, str(report), str(losses), str(steps), *text.split("\0")[:-1]]
    own = OWN_PROGRAMS.get(run.target)
    if own is not None:
        return [str(HERE / own), str(report), str(losses), str(steps)]
    words = [str(HERE / "export_probe.py"), run.target, str(report), run.script]
    if run.target == "trainer":
        words += [
            "trainer.yaml",
            "--max_steps",
            str(steps),
            "--save_steps",
            str(steps - 2),
            "--output_dir",
            KEPT,
        ]
    else:
        words += ["--steps", str(steps), "--save-every", str(steps - 2), "--checkpoints", KEPT]
    words += ["--data", "mock", "--losses", str(losses)]
    return [*words, "--backend", "gloo"] if run.target == "deepspeed" else words


def _accelerate_words(path: Path) -> dict[str, str]:
    """What `accelerate launch` puts into the environment for the sharding and the split that its YAML asks for."""
    asked = yaml.safe_load(path.read_text()) if path.is_file() else {}
    said = {}
    for section, switch in (
        ("fsdp_config", "ACCELERATE_USE_FSDP"),
        ("parallelism_config", "ACCELERATE_USE_PARALLELISM_CONFIG"),
    ):
        words = asked.get(section, {})
        said |= {
            name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in words.items()
        }
        said |= {switch: "true"} if words else {}
    return said


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(runs: list[Run], before: str = "") -> str:
    """What ran, as Markdown; rows of targets that did not run now stay as the page before had them."""
    now = {run.target for run in runs}
    old = [
        m[0]
        for m in re.finditer(r"^\| `([\w-]+)` \|(?:[^|\n]*\|){5}$", before, re.M)
        if m[1] not in now
    ]
    lines = [
        "# Exports that ran",
        "",
        f"Written by `python benchmarks/export_runs.py --write docs/export_runs.md` with torch {metadata.version('torch').split('+')[0]}.",
        "A two-layer model (torchtitan: the registered model's layers, narrow) on this machine's processors, the plan's",
        "degrees kept. *Reported* is what the framework's own objects said while it ran. Under Megatron and torchtitan the",
        "device, data and attention kernels are stood in for (`export_megatron_run.py`, `export_titan_run.py`): the files'",
        "words, parsers, groups, schedules, sharding and optimizers are the exported ones and theirs. Tools for",
        "fine-tuning train a checkpoint of two layers on made-up rows (`export_tuning_run.py`) by their own commands; under verl",
        "processors are a platform of its own kind, and its FSDP engine is registered for them (`export_verl_run.py`).",
        "*Resumed*: the scripts that an export writes are started again from a checkpoint two steps before their end, and",
        "make the same losses.",
        "",
        "| target | planned | steps | reported | agrees | resumed |",
        "|---|---|---|---|---|---|",
    ]
    lines += old
    for run in runs:
        said = ", ".join(
            f"{name} {run.reported[name]}" for name in run.compared if name in run.reported
        )
        plan = run.plan()
        label = canonical(plan.layout, plan.model).label()
        label += f" {run.model}" if run.target == "torchtitan" else ""
        label += " compiled" if "COMPILED" in run.environment else ""
        label += f" {run.precision}" if run.precision != "fp32" else ""
        agrees = run.missing or run.reason or "yes"
        lines.append(
            f"| `{run.target}` | {label} | {run.steps} | {said or '-'} | {agrees} | {run.resumed or '-'} |"
        )
    lines += ["", "What no CPU runs, and how far each was checked by the export tests:", "", "| target | checked | why not stepped |", "|---|---|---|"]  # fmt: skip
    lines += [f"| `{name}` | {far} | {why} |" for name, far, why in NOT_HERE]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run them and print or write the table; exits 1 where a layout differs or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    runs = [run for run in RUNS if options.only in run.target]
    for run in runs:
        step(run, options.steps)
        print(
            f"{run.target} {run.layout}: {run.steps} steps, {run.reported}, {run.missing or run.reason or 'agrees'}",
            flush=True,
        )
    if options.write:
        before = options.write.read_text() if options.write.is_file() else ""
        options.write.write_text(page(runs, before))
    raise SystemExit(any(run.reason for run in runs))


if __name__ == "__main__":
    main()
