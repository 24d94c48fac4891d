"""Check the Kubernetes exports against the published resource definitions, field by field.

Usage: python tests/exports/validators/kubernetes_crds.py FOLDER

FOLDER holds the definitions as their projects publish them, which are too large to keep here:
    trainer.kubeflow.org_trainjobs.yaml     kubeflow/trainer, manifests/base/crds
    jobset.x-k8s.io_jobsets.yaml            kubernetes-sigs/jobset, config/components/crd/bases
    kubeflow.org_pytorchjobs.yaml           kubeflow/training-operator v1.9, manifests/base/crds
Needs `jsonschema_rs` (group `browser`). An unknown field is an error, as it is for the API server.
"""

import sys
from pathlib import Path

import jsonschema_rs
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))
from plans import make_plan

from meshwright.exports.targets import LAUNCHERS, export

DEFINITIONS = {
    "kubernetes": "trainer.kubeflow.org_trainjobs.yaml",
    "jobset": "jobset.x-k8s.io_jobsets.yaml",
    "pytorchjob": "kubeflow.org_pytorchjobs.yaml",
}


def strict(schema):
    """Make an OpenAPI schema a JSON schema that refuses fields it does not name."""
    if isinstance(schema, list):
        for part in schema:
            strict(part)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(schema.get("format"), str):
        del schema["format"]
    for part in list(schema.values()):
        strict(part)


def main():
    folder = Path(sys.argv[1])
    wrong = 0
    for target, name in DEFINITIONS.items():
        versions = yaml.safe_load((folder / name).read_text())["spec"]["versions"]
        schema = versions[-1]["schema"]["openAPIV3Schema"]
        strict(schema)
        schema["properties"]["metadata"] = {"type": "object"}
        validator = jsonschema_rs.Draft202012Validator(schema)
        for layout in ({"dp": 8}, {"tp": 8, "dp": 4, "zero": 1}):
            bundle = export(make_plan("llama3-8b", **layout), target, launches="megatron")
            data = yaml.safe_load(bundle.files[LAUNCHERS[target].file])
            for error in validator.iter_errors(data):
                wrong += 1
                print(f"{target}: {error.message} at {error.instance_path}")
        print(f"{target}: checked against {name} ({versions[-1]['name']})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
