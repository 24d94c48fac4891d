"""Kubernetes objects that we write, read by the models that their projects generate and publish.

`kubeflow-trainer-api` holds TrainJob, TrainingRuntime, JobSet and every core object below them (pods,
volumes, rights) as typed models. A model drops a field that it does not know, so what goes in must come
out again.
"""

import copy
import itertools
import re

import pytest
import yaml
from plans import make_plan

from meshwright.exports.targets import FRAMEWORKS, LAUNCHERS, export
from meshwright.planner.stacks import under
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job

models = pytest.importorskip("kubeflow_trainer_api.models", reason="group validate brings it")
KINDS = {
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "JobSet": models.JobsetV1alpha2JobSet,
}
CLUSTERS = ("h100:2x8", "aws-p5:2", "mi300x:2x8", "rtx4090-pc:2", "gb200:4x4")


def objects(launcher, framework, cluster):
    plan = make_plan("llama3.1-8b", dp=16, cluster=cluster)
    text = export(plan, launcher, launches=framework).files[LAUNCHERS[launcher].file]
    return list(yaml.safe_load_all(text))


def quantities(data):
    """Amounts as texts, which is what the models hold; the API server takes numbers as well."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in ("limits", "requests"):
            data[key] = {name: str(amount) for name, amount in value.items()}
        quantities(value)
    for value in data if isinstance(data, list) else ():
        quantities(value)


def read_back(model, data):
    """What the model makes of an object, without what it adds by itself."""
    data = copy.deepcopy(data)
    quantities(data)
    return model.from_dict(data).to_dict(), data


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset"])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_field_is_one_that_the_project_s_models_know(launcher, cluster):
    vendor = load_cluster(cluster).device.vendor
    able = [n for n in FRAMEWORKS if FRAMEWORKS[n].limits.can.is_exported_on(vendor)]
    for framework in [n for n in able if n != "maxtext"]:  # whose pods are slices of TPUs
        for data in objects(launcher, framework, cluster):
            if data["kind"] == "ComputeDomain":
                continue  # NVIDIA's, of no model here: the test of racks below
            back, given = read_back(KINDS[data["kind"]], data)
            assert back == given, framework


def test_a_pytorchjob_s_pods_are_core_pods():
    for cluster in CLUSTERS:
        *_, data = objects("pytorchjob", "megatron", cluster)
        for part in data["spec"]["pytorchReplicaSpecs"].values():
            back, given = read_back(models.IoK8sApiCoreV1PodTemplateSpec, part["template"])
            assert back == given


def test_a_field_that_no_model_knows_does_not_come_back():
    data = objects("jobset", "fsdp", "h100:2x8")[0]
    data["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwrok"] = True
    back, given = read_back(KINDS["JobSet"], data)
    assert back != given


def test_a_train_job_runs_on_the_runtime_that_comes_with_it():
    runtime, job = objects("kubernetes", "fsdp", "h100:2x8")
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    assert node["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["hostNetwork"] and pod["containers"][0]["name"] == "node"
    assert {"shm", "code", "shared"} == {
        one["name"] for one in pod["containers"][0]["volumeMounts"]
    }


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob"])
def test_hosts_of_one_nvlink_network_claim_a_channel_of_it(launcher):
    domain, *rest = objects(launcher, "fsdp", "gb200:4x4")
    assert domain["apiVersion"] == "resource.nvidia.com/v1beta1"
    assert domain["spec"]["numNodes"] == 4
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    text = yaml.safe_dump_all(rest)
    assert f"resourceClaimTemplateName: {template}" in text
    # Trainer's JobSet builder hands on limits and requests of a job's resourcesPerNode, and drops its claims.
    assert text.count("claims:") == text.count("resourceClaims:") and "resourcesPerNode" not in text
    assert all(data["kind"] != "ComputeDomain" for data in objects(launcher, "fsdp", "h100:2x8"))


def test_each_rack_is_a_job_and_ranks_count_through_them():
    plan = make_plan("llama3.1-8b", dp=160, cluster="gb200:40x4")
    _, jobset = yaml.safe_load_all(export(plan, "jobset", launches="fsdp").files["jobset.yaml"])
    assert jobset["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "nvidia.com/gpu.clique"
    }
    ranks = []
    for group in jobset["spec"]["replicatedJobs"]:
        spec = group["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        said = re.search(r'--node-rank "\$\(\((.*?)\)\)"', container["command"][2])[1]
        assert container["env"][-1]["name"] == "JOB_INDEX"
        places = itertools.product(range(group["replicas"]), range(spec["completions"]))
        names = ("JOB_INDEX", "JOB_COMPLETION_INDEX")
        ranks += [eval(said, dict(zip(names, place, strict=True))) for place in places]
    assert ranks == list(range(40))


@pytest.mark.parametrize(
    ("cluster", "accelerator", "topology", "hosts"),
    [("tpu-v5p:16x4", "tpu-v5p-slice", "4x4x4", 16), ("tpu-v5p:96x4", "tpu-v5p-slice", "4x8x12", 96),
     ("tpu-v6e:4x8", "tpu-v6e-slice", "4x8", 8), ("tpu-v5e:1x8", "tpu-v5-lite-podslice", "2x4", 1)],
)  # fmt: skip
def test_a_slice_of_tpus_is_one_job_of_its_hosts(cluster, accelerator, topology, hosts):
    chips = load_cluster(cluster).gpus
    job = Job(seq_len=4096, global_batch=chips, precision=under(Job(), "maxtext").precision)
    plan = make_plan("llama3.1-8b", cluster, job, dp=chips, zero=3)
    bundle = export(plan, "jobset", launches="maxtext")
    (data,) = yaml.safe_load_all(bundle.files["jobset.yaml"])
    back, given = read_back(models.JobsetV1alpha2JobSet, data)
    assert back == given
    spec = data["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert spec["completions"] == hosts
    assert hosts * pod["containers"][0]["resources"]["limits"]["google.com/tpu"] == chips
    assert "maxtext.yml" in bundle.files and "configmap" in bundle.start


def test_a_number_of_chips_that_no_slice_has_is_refused():
    job = Job(seq_len=4096, global_batch=24, precision=under(Job(), "maxtext").precision)
    plan = make_plan("llama3.1-8b", "tpu-v5p:6x4", job, dp=24, zero=3)
    with pytest.raises(SpecError, match="slices of 4, 8, 16, 32 or 64"):
        export(plan, "jobset", launches="maxtext")
