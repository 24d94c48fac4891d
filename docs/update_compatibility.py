"""Write docs/compatibility.md from a run of the export tests: `python docs/update_compatibility.py`.

Runs `tests/exports` (with the parsers of `make validate-more` if they are installed) and reports,
for every target, the version it was checked against and which checks passed in that run.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

from meshwright.exports.targets import FINETUNERS, FRAMEWORKS, LAUNCHERS

ROOT = Path(__file__).parent.parent
MORE = Path(os.environ.get("MESHWRIGHT_VALIDATE") or Path(sys.prefix) / "validate")
MORE_TESTS = ("tests/exports/test_more_parsers.py", "tests/exports/test_drawn_parsers.py")

# Target → (what a check shows, the tests that show it as a pattern of their names).
COMMON = {
    "comes back with the same layout": r"test_the_layout_survives_export_and_import\[{name}\]",
    "two hosts started by every launcher": r"test_launchers_start_two_hosts.*\[{name}-(?!bridge)",
    "stamped": r"test_every_file_says_who_made_it_and_how\[{name}\]",
}
CHECKS = {
    "megatron": {
        "its argument validation, its flags, its log": r"test_megatron_accepts",
        "published runs without loss": r"test_published_runs.*\[megatron-(?!bridge)",
    },
    "megatron-bridge": {
        "its configuration classes (0.3.1)": r"test_megatron_bridge_reads_our_overrides",
        "its recipe, overridden and validated (067f987)": r"test_megatron_bridge_s_recipe",
        "published runs without loss": r"test_published_runs.*\[megatron-bridge-",
    },
    "nanotron": {"its YAML parser": r"test_nanotron_reads_our_files"},
    "deepspeed": {
        "DeepSpeedConfig": r"test_deepspeed_accepts_our_json",
        "trained 3 steps on CPU, loss equal": r"test_the_deepspeed_export_runs",
    },
    "accelerate": {
        "its launcher and plugins": r"test_accelerate_accepts_our_yaml",
        "its keys": r"test_our_tables_of_accelerate_keys",
        "trained 3 steps on CPU, loss equal": r"test_the_accelerate_export_runs",
        "FSDP2 trained 3 steps on CPU, loss equal": r"test_the_accelerate_export_shards",
        "tensors split beside shards, 3 steps on CPU, loss equal": r"test_the_accelerate_export_splits",
        "no host holds the weights": r"test_blank_weights_take_no_host_memory",
    },
    "maxtext": {"its configuration (0.2.5)": r"test_maxtext_reads_our_files"},
    "trainer": {"its arguments, through its own parser": r"test_the_trainer_reads_our_arguments"},
    "torchtitan": {
        "its configuration classes": r"test_torchtitan_accepts_our_fields",
        "its log": r"test_a_torchtitan_log_is_read_back",
    },
    "trl": {"its own parser (1.16.0)": r"test_a_tuning_tool_s_own_parser_reads_our_file\[trl-", "read back by import": r"test_what_is_written_is_read_back\[.*trl", "split through accelerate": r"test_a_split_goes_through_accelerate"},
    "axolotl": {"its own schema (0.21.0)": r"test_a_tuning_tool_s_own_parser_reads_our_file\[axolotl-", "read back by import": r"test_what_is_written_is_read_back\[.*axolotl"},
    "llama-factory": {"its own parser (0.9.5)": r"test_a_tuning_tool_s_own_parser_reads_our_file\[llama-factory-", "read back by import": r"test_what_is_written_is_read_back\[.*llama-factory"},
    "torchtune": {"its own validation (0.6.1)": r"test_a_tuning_tool_s_own_parser_reads_our_file\[torchtune-", "read back": r"test_torchtune_is_read_back"},
    "verl": {"read back": r"test_verl_is_read_back"},
    "fsdp": {"trained 3 steps on CPU, loss equal": r"test_the_pytorch_script_runs"},
    "lightning": {"trained 3 steps on CPU": r"test_the_lightning_export_runs"},
    "torchrun": {"bash, torchrun's parser": r"test_launchers_start_two_hosts.*-torchrun\]"},
    "slurm": {"sbatch --test-only and tasks started by srun (SLURM 22.05, eight hosts on loopback)": r"test_sbatch_|test_every_host_starts|test_a_job_that_fails_on_one", "bash, torchrun's parser": r"test_launchers_start_two_hosts.*-slurm\]"},
    "kubernetes": {"its models (kubeflow-trainer-api 2.3.0)": r"test_every_field_is_one.*-kubernetes\]", "devices, bash, torchrun's parser": r"(start_two_hosts.*-|every_device\[)kubernetes\]"},
    "jobset": {"its models (kubeflow-trainer-api 2.3.0)": r"test_every_field_is_one.*-jobset\]", "devices, bash, torchrun's parser": r"(start_two_hosts.*-|every_device\[)jobset\]"},
    "pytorchjob": {"models of its pods": r"test_a_pytorchjob_s_pods", "devices, bash, torchrun's parser": r"(start_two_hosts.*-|every_device\[)pytorchjob\]"},
    "skypilot": {"sky.Task.from_yaml": r"test_skypilot_accepts", "bash": r"start_two_hosts.*-skypilot\]"},
    "ray": {"Ray Train 2.60.0 ran its driver on this machine": r"test_ray_train_runs_our_driver", "syntax and words": r"test_ray_starts_every_rank"},
}  # fmt: skip
# What no check here covers, said as plainly.
NOT_RUN = {
    "megatron": "CUDA kernels (stepped on CPU: export_runs.md)",
    "megatron-bridge": "training (needs Transformer Engine)",
    "nanotron": "training (needs flash-attn)",
    "maxtext": "training (TPUs)",
    "torchtitan": "CUDA kernels (stepped on CPU: export_runs.md)",
    "accelerate": "CP training",
    **dict.fromkeys(("trl", "axolotl", "llama-factory", "torchtune", "verl"), "CUDA kernels (stepped on CPU: export_runs.md)"),
    "slurm": "SLURM newer than 22.05, pyxis", "kubernetes": "a cluster", "jobset": "a cluster", "pytorchjob": "a cluster",
    "skypilot": "a cloud", "ray": "several hosts",
}  # fmt: skip


def results() -> dict[str, str]:
    """Name of each test → passed, failed or skipped."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    left_out = [word for name in MORE_TESTS for word in ("--ignore", name)]
    found = _run(["tests/exports", *left_out], environment)
    if (MORE / "skypilot-0.14.1").is_dir():
        return found | _run([*MORE_TESTS], environment | {"MESHWRIGHT_VALIDATE_MORE": "1"})
    return found | _run([*MORE_TESTS], environment)


def _run(what: list[str], environment: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", *what, "-q", f"--junitxml={report}"],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {case.get("name", ""): _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def cell(found: dict[str, str], pattern: str) -> str:
    """How the tests of one check went: the number that passed, or what went wrong."""
    outcomes = [outcome for name, outcome in found.items() if re.search(pattern, name)]
    if not outcomes:
        raise SystemExit(f"no test matches {pattern!r}: update the table in {__file__}")
    if "failed" in outcomes:
        return "**failed**"
    return "not run" if set(outcomes) == {"skipped"} else f"passed ({outcomes.count('passed')})"


def main() -> None:
    found = results()
    rows = []
    targets = {name: (f.title, f.version) for name, f in (FRAMEWORKS | FINETUNERS).items()}
    targets |= {name: (launcher.title, "") for name, launcher in LAUNCHERS.items()}
    versions = {
        "torchrun": f"torch {metadata.version('torch').split('+')[0]}",
        "skypilot": "0.14.1",
        "slurm": "22.05",
        "ray": "2.60.0",
    }
    for name, (title, version) in targets.items():
        checks = dict(CHECKS.get(name, {}))
        if name in FRAMEWORKS:
            checks |= {
                what: p.format(name=re.escape(name))
                for what, p in COMMON.items()
                if (name, what[:9]) != ("maxtext", "two hosts")
            }
        shown = "; ".join(f"{what}: {cell(found, p)}" for what, p in checks.items())
        version = versions.get(name, version) or "-"
        rows.append(f"| `{name}` | {title} | {version} | {shown} | {NOT_RUN.get(name, '-')} |")
    counts = {kind: list(found.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    text = (
        "# Compatibility\n\nWritten by `python docs/update_compatibility.py` from a run of the export "
        f"tests: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped. "
        "A number in brackets counts the tests behind a check.\n\n"
        "| target | tool | version | checked in this run | not checked |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    (ROOT / "docs/compatibility.md").write_text(text)
    print(f"docs/compatibility.md written: {counts}")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
