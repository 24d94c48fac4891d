"""Exports go through the parsers of the tools themselves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from plans import TITAN, make_plan, plans

from meshwright.exports import (
    accelerate,
    deepspeed,
    megatron,
    megatron_bridge,
    torchtitan,
    torchtitan_read,
)
from meshwright.exports.fabric import environment
from meshwright.exports.megatron_read import known_flags
from meshwright.exports.targets import FRAMEWORKS, LAUNCHERS, export
from meshwright.imports.files import import_text
from meshwright.imports.reading import Given

MEGATRON = Path(sys.prefix) / "validate" / "megatron-core-0.19.2"
HARNESS = Path(__file__).parent / "validators" / "megatron_arguments.py"


def sample(strategy, count):
    """A fixed number of random plans, the same ones on every run."""
    found = []

    @settings(max_examples=count, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(plan):
        found.append(plan)

    collect()
    return found


def ask_megatron(questions):
    assert MEGATRON.is_dir(), "megatron-core 0.19.2 is missing: `make test` installs it"
    lines = "\n".join(json.dumps(q) for q in questions) + "\n"
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(MEGATRON)], input=lines, capture_output=True, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=500, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def question(plan, extra=()):
    words = megatron.words(megatron.all_flags(plan))
    variables = {name: value for name, (value, _) in environment(plan, "megatron").items()}
    return {"world": plan.layout.world, "words": [*words, *extra], "variables": variables}


def test_megatron_accepts_our_flags_and_refuses_wrong_ones():
    good = sample(plans(megatron.LIMITS), 40)
    base = make_plan("llama3-70b", tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    wrong = [
        base.but(layout=base.layout.but(tp=3, dp=2).model_dump()),
        base.but(model=base.model.but(layers=82).model_dump()),
        base.but(job=base.job.but(global_batch=17).model_dump()),
    ]
    flags, *answers = ask_megatron(
        [question(p) | {"log": True} for p in [*good, *wrong]] + [question(base, ["--nonsense"])]
    )
    assert flags == known_flags()
    for plan, answer in zip(good[:20], answers, strict=False):
        # Megatron's own print-out of its arguments is read back as the same plan.
        back = import_text(answer["log"], "train.log", Given(cluster=plan.cluster))
        assert back.format == "Megatron-LM log"
        assert back.layout == megatron.canonical(plan.layout, plan.model), plan.model.name
        assert back.job.global_batch == plan.job.global_batch
        assert (back.model.layers, back.model.ffn, back.model.gated, back.model.kv_heads) == (
            plan.model.layers, plan.model.ffn, plan.model.gated, plan.model.kv_heads,
        )  # fmt: skip
    for plan, answer in zip(good, answers, strict=False):
        assert answer["error"] is None, (plan.model.name, plan.layout.label(), answer["error"])
        assert answer["dp"] == plan.layout.dp
        assert (answer["virtual"] or 1) == megatron.canonical(
            plan.layout, plan.model
        ).virtual_stages
        if answer["split"] is not None and plan.layout.stage_layers:
            assert tuple(answer["split"]) == plan.layout.stage_layers
    assert "multiple of tensor_model_parallel_size" in answers[len(good)]["error"]
    for answer in answers[len(good) + 2 :]:
        assert answer["error"] is not None
    # 82 layers in 4 stages: we write the uneven split out, Megatron takes it.
    assert answers[len(good) + 1]["split"] == [20, 21, 21, 20]


def test_megatron_takes_lists_of_modules_apart():
    """Several words of one flag are several words, to Megatron-LM's parser and to Hydra."""
    modules = ("moe_act", "layernorm")
    plan = make_plan("mixtral-8x7b", pp=2, dp=8, ep=8, zero=1, recompute="selective",
                     recompute_modules=modules)  # fmt: skip
    _flags, answer = ask_megatron([question(plan)])
    assert answer["error"] is None
    assert tuple(answer["modules"]["recompute_modules"]) == modules
    assert megatron_bridge.overrides(plan)["model.recompute_modules"] == f"[{','.join(modules)}]"


def deepspeed_config(data, ranks):
    import deepspeed.runtime.config as runtime

    units = SimpleNamespace(get_data_parallel_world_size=lambda: ranks)
    rank, runtime.dist.get_rank = runtime.dist.get_rank, lambda *a, **k: 0
    try:
        return runtime.DeepSpeedConfig(data, mpu=units)
    finally:
        runtime.dist.get_rank = rank


def test_deepspeed_accepts_our_json():
    for plan in sample(plans(deepspeed.LIMITS), 25):
        layout = plan.layout
        parsed = deepspeed_config(deepspeed.config(plan), layout.dp)
        assert parsed.zero_config.stage == deepspeed.canonical(layout, plan.model).zero
        assert parsed.train_batch_size == plan.job.global_batch
        assert parsed.train_micro_batch_size_per_gpu == layout.micro_batch
        assert parsed.gradient_accumulation_steps == layout.micro_batches(plan.job.global_batch)
        assert parsed.tensor_parallel_config.autotp_size == (layout.tp if layout.tp > 1 else 0)
        assert parsed.bfloat16_config.enabled == (plan.job.precision.compute == "bf16")


def test_deepspeed_refuses_what_we_would_refuse():
    data = deepspeed.config(make_plan(dp=8, zero=2))
    with pytest.raises(Exception, match=r"(?i)extra|no_such"):
        deepspeed_config(data | {"zero_optimization": {"stage": 2, "no_such": 1}}, 8)
    with pytest.raises(AssertionError, match="train_batch_size"):
        deepspeed_config(data, 4)


def accelerate_settings(path, monkeypatch):
    """What a launched process gets: accelerate's own objects, built from its environment."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    parser = launch_command_parser()
    arguments = parser.parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    for name, value in prepare_multi_gpu_env(arguments).items():
        monkeypatch.setenv(name, value)
    return arguments, parser


def test_accelerate_accepts_our_yaml(tmp_path, monkeypatch):
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    for number, plan in enumerate(
        sample(plans(accelerate.LIMITS, ("llama3-8b", "mixtral-8x7b")), 12)
    ):
        with monkeypatch.context() as patch:
            path = tmp_path / f"{number}.yaml"
            path.write_text(yaml.safe_dump(accelerate.config(plan)))
            arguments, parser = accelerate_settings(path, patch)
            layout = accelerate.canonical(plan.layout, plan.model)
            assert arguments.num_processes == layout.world
            if layout.zero:
                plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
                assert plugin.reshard_after_forward is (layout.zero == 3)
                assert plugin.activation_checkpointing is (layout.recompute == "full")
            if layout.zero or layout.tp > 1:
                sizes = ParallelismConfig()
                assert sizes.total_size == layout.world
                assert (sizes.tp_size, sizes.cp_size) == (layout.tp, layout.cp)
                assert sizes.dp_shard_size * layout.cp == (
                    layout.shard_degree if layout.zero else layout.cp
                )
            options = {action.dest for action in parser._actions}
            for table in ("fsdp_config", "parallelism_config"):
                for key in accelerate.config(plan).get(table, {}):
                    assert key in options, key


def test_accelerate_hands_sequences_to_deepspeed_as_we_write_it(tmp_path, monkeypatch):
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    plan = make_plan("llama3-8b", cluster="h100:1x8", dp=2, cp=4, cp_method="ulysses", zero=3)
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(accelerate.deepspeed_config(plan, "deepspeed.json")))
    arguments, parser = accelerate_settings(path, monkeypatch)
    arguments.deepspeed_fields_from_accelerate_config = []
    _, environment = prepare_deepspeed_cmd_env(arguments)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sizes = ParallelismConfig()
    assert (sizes.sp_size, sizes.data_parallel_size, sizes.total_size) == (4, 2, 8)
    assert environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "deepspeed.json"
    config = accelerate.deepspeed_config(plan, "deepspeed.json")
    words = {key for table in ("deepspeed_config", "parallelism_config") for key in config[table]}
    assert words <= {action.dest for action in parser._actions}


def test_our_tables_of_accelerate_keys_are_those_of_its_parser():
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    assert set(ClusterConfig.__dataclass_fields__) == accelerate.KNOWN_KEYS[""]
    for table, prefix in (("fsdp_config", "fsdp_"), ("parallelism_config", "parallelism_config_")):
        theirs = {option for option in options if option.startswith(prefix)} - {table}
        assert theirs - accelerate.KNOWN_KEYS[table] == set(), table
        assert accelerate.KNOWN_KEYS[table] - theirs <= {"fsdp_ignored_modules"}


FAKE = {
    # Stand-ins that print the words they are started with, or what the real tool would answer.
    "torchrun": 'printf "%s\\n" "$@"',
    "accelerate": 'shift\nprintf "%s\\n" "$@"',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
    "git": "exit 0",
    "pip": "exit 0",
    "hf": "exit 0",
    "scontrol": "echo host7",
}


def started_words(text, tmp_path):
    """Let bash itself say with which words a script would start torchrun on the second host."""
    script, fake = tmp_path / "script.sh", tmp_path / "bin"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        linted = subprocess.run(
            ["shellcheck", "--shell=bash", "--severity=warning", str(script)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert linted.returncode == 0, linted.stdout
    fake.mkdir()
    for name, body in FAKE.items():
        (fake / name).write_text(f"#!/bin/sh\n{body}\n")
        (fake / name).chmod(0o755)
    second = dict.fromkeys(
        ("NODE_RANK", "SLURM_NODEID", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "SKYPILOT_NODE_RANK"), "1"
    )  # fmt: skip
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PATH": f"{fake}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "host[7-8]",
             "MASTER_ADDR": "host7", "PET_MASTER_ADDR": "host7", "PET_MASTER_PORT": "1234",
             "SKYPILOT_NODE_IPS": "host7\nhost8", "DATA": "mock", **second},
    )  # fmt: skip
    return done.stdout.splitlines()


def command_of(bundle, launcher):
    text = bundle.files[LAUNCHERS[launcher].file]
    if launcher == "skypilot":
        return yaml.safe_load(text)["run"]
    if launcher in ("kubernetes", "jobset", "pytorchjob"):
        return find(last_object(text), "command")[2]
    return text


def last_object(text):
    """What a file of Kubernetes objects starts: its last one; a runtime may stand before it."""
    return list(yaml.safe_load_all(text))[-1]


def find(data, key):
    """The first value of a key, anywhere."""
    if isinstance(data, dict):
        if key in data:
            return data[key]
        data = list(data.values())
    for value in data if isinstance(data, list) else ():
        found = find(value, key)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "ray"])
@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "maxtext"])
def test_launchers_start_two_hosts_with_words_that_torchrun_accepts(launcher, framework, tmp_path):
    from torch.distributed.run import config_from_args, parse_args

    plan = make_plan("llama3.1-8b", dp=16, zero=0, micro_batch=2)
    bundle = export(plan, launcher, launches=framework)
    words = started_words(command_of(bundle, launcher), tmp_path)
    if framework == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        started = launch_command_parser().parse_args(words)
        assert (started.num_machines, started.num_processes, started.machine_rank) == (2, 16, 1)
        return
    started = parse_args(words)
    config, _, rest = config_from_args(started)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 8)
    assert started.node_rank == 1
    assert started.master_addr in ("host7", "llama3-1-8b-host-0-0.llama3-1-8b")
    assert rest[-1]


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob", "skypilot"])
def test_cluster_files_ask_for_every_device(launcher):
    plan = make_plan("llama3-8b", tp=8, dp=3)
    text = export(plan, launcher, launches="megatron").files[LAUNCHERS[launcher].file]
    data = last_object(text)
    if launcher == "skypilot":
        assert (data["num_nodes"], data["resources"]["accelerators"]) == (3, "H100:8")
        return
    limits = find(data, "limits")
    pods = {
        "kubernetes": lambda: data["spec"]["trainer"]["numNodes"],
        "jobset": lambda: find(data, "parallelism"),
        "pytorchjob": lambda: sum(
            one["replicas"] for one in data["spec"]["pytorchReplicaSpecs"].values()
        ),
    }[launcher]()
    assert pods * limits["nvidia.com/gpu"] == plan.layout.world


FIELDS = {
    # Every field we write, as the published definitions name it (validators/kubernetes_crds.py
    # checks them against the definitions themselves).
    "kubernetes": "apiVersion kind metadata metadata.name spec spec.runtimeRef spec.runtimeRef.apiGroup "
    "spec.runtimeRef.kind spec.runtimeRef.name spec.trainer spec.trainer.image spec.trainer.numNodes "
    "spec.trainer.command spec.trainer.env spec.trainer.resourcesPerNode",
    "jobset": "apiVersion kind metadata metadata.name spec spec.network "
    "spec.network.enableDNSHostnames spec.replicatedJobs",
    "pytorchjob": "apiVersion kind metadata metadata.name spec spec.nprocPerNode "
    "spec.pytorchReplicaSpecs spec.pytorchReplicaSpecs.Master spec.pytorchReplicaSpecs.Worker",
}
API = {
    "kubernetes": "trainer.kubeflow.org/v1alpha1",
    "jobset": "jobset.x-k8s.io/v1alpha2",
    "pytorchjob": "kubeflow.org/v1",
}


@pytest.mark.parametrize("launcher", list(FIELDS))
def test_kubernetes_objects_have_only_published_fields(launcher):
    plan = make_plan("llama3-8b", tp=8, dp=3)
    text = export(plan, launcher, launches="megatron").files[LAUNCHERS[launcher].file]
    data = last_object(text)
    assert data["apiVersion"] == API[launcher]
    known = FIELDS[launcher].split()

    def walk(value, path):
        for key, inner in value.items() if isinstance(value, dict) else ():
            name = f"{path}{key}"
            assert name in known, name
            if any(other.startswith(f"{name}.") for other in known):
                walk(inner, f"{name}.")

    walk(data, "")
    assert data["metadata"]["name"] == "llama3-8b"


def test_ray_starts_every_rank_with_the_same_words():
    import ast

    plan = make_plan("llama3-8b", tp=2, dp=4, zero=1)
    text = export(plan, "ray", launches="megatron").files["ray_train.py"]
    tree = ast.parse(text)
    # What follows the driver's own name goes on to the program.
    words = next(ast.literal_eval(n.value) for n in tree.body
                 if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "WORDS")  # fmt: skip
    assert words[1:] == megatron.words(megatron.all_flags(plan))
    assert "num_workers=8" in text


def test_torchtitan_recipes_use_fields_that_its_configuration_has(tmp_path):
    import ast

    for plan in sample(plans(torchtitan.LIMITS, TITAN), 15):
        text = torchtitan.files(plan, "x")["recipe.py"]
        compile(text, "recipe.py", "exec")
        preset, _, layout = torchtitan_read.read(ast.parse(text), plan.layout.world)
        assert preset == plan.model.name
        assert layout.world == plan.layout.world


def test_the_torchtitan_recipe_starts_under_a_released_torch():
    """Its default backend hands plain parameters to a fully_shard that only a nightly torch takes."""
    plan = make_plan("qwen3-0.6b", cluster="h100:1x8", dp=8, zero=3)
    assert "spmd_backend='partial_dtensor'" in export(plan, "torchtitan").files["recipe.py"]


def test_a_torchtitan_log_is_read_back():
    for plan in sample(plans(torchtitan.LIMITS, TITAN), 15):
        module, flavor = torchtitan.flavor(plan.model)
        kind = {"none": None, "full": {"preserve_rng_state": True}, "selective": {
            "preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": []}}  # fmt: skip
        config = {
            "model_spec": {"name": module, "flavor": flavor},
            "parallelism": torchtitan.parallelism(plan),
            "training": torchtitan.training(plan),
            "activation_checkpoint": kind[torchtitan.canonical(plan.layout).recompute],
        }
        text = (
            f"[titan] 2026 - INFO - Running with configs: {json.dumps(config, indent=2)}\nstep: 1\n"
        )
        back = import_text(text, "titan.log", Given(cluster=plan.cluster))
        assert back.layout == torchtitan.canonical(plan.layout, plan.model)
        assert back.model.name == plan.model.name
