"""What a checkpoint's folder may do to whoever resumes from it: nothing but be read."""

import io
import os
import pickle
import socket
import subprocess
import sys

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from meshwright.engine.checkpoints.index import read_index
from meshwright.engine.checkpoints.manifest import DamagedError
from meshwright.engine.data import Corpus
from meshwright.engine.model.export import _remove_stale
from meshwright.engine.ranks.claim import claim, let_go
from meshwright.engine.ranks.rendezvous import _listener
from meshwright.engine.watch.recorder import Recorder
from meshwright.engine.watch.report import page_of
from meshwright.specs.errors import SpecError


def index(path="__0_0.distcp"):
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    size = torch.Size([4])
    chunk = ChunkStorageMetadata(torch.Size([0]), size)
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), size, [chunk])
    place = {MetadataIndex("a", torch.Size([0])): _StorageInfo(path, 0, 16)}
    return Metadata({"a": tensor}, storage_data=place)


def test_an_index_of_tensors_is_read():
    made = read_index(pickle.dumps(index()))
    assert made == index()


def test_nothing_in_an_index_runs(tmp_path):
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    hidden = index()
    hidden.planner_data = Evil()
    as_bytes = index()
    as_bytes.state_dict_metadata["a"] = BytesStorageMetadata()  # torch would unpickle its file
    stream = io.BytesIO()
    torch.save(Evil(), stream)
    for raw in (
        pickle.dumps(Evil()), pickle.dumps(hidden), pickle.dumps(as_bytes), stream.getvalue(),
        pickle.dumps(index("../../other")), pickle.dumps(index("/etc/passwd")), pickle.dumps([1]),
        b"", b"]r\xff\xff\xff\x7f.",
    ):  # fmt: skip
        with pytest.raises(DamagedError):
            read_index(raw)
    assert not canary.exists()


def test_the_store_listens_at_its_own_address_only():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listener = socket.socket(fileno=_listener("127.0.0.1", port))
    try:
        assert listener.getsockname() == ("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            _listener("127.0.0.1", port)
    finally:
        listener.close()
    assert _listener("192.0.2.1", 0) is None  # an address of no machine: torch's own way


def test_one_run_at_a_time_in_a_folder(tmp_path):
    claim(tmp_path)
    claim(tmp_path)
    code = (
        "import sys, pathlib\nfrom meshwright.engine.ranks.claim import claim\n"
        "try:\n    claim(pathlib.Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)\n"
    )
    other = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(other, capture_output=True, text=True, timeout=120)
    assert "another run trains in this folder" in refused.stdout, refused.stderr
    let_go(tmp_path)
    assert subprocess.run(other, capture_output=True, text=True, timeout=120).stdout == ""


def test_other_data_of_the_same_length_is_noticed(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"some text " * 5000)
    before = Corpus(file, 16).fingerprint()
    assert Corpus(file, 16).fingerprint() == before
    file.write_bytes(b"Some text " + b"some text " * 4999)
    assert Corpus(file, 16).fingerprint() != before


def test_weights_of_an_earlier_export_do_not_stay(tmp_path):
    for name in ("model.safetensors", "model-00001-of-00003.safetensors", "mine.safetensors",
                 "model.safetensors.index.json", "model-00001-of-00002.safetensors"):  # fmt: skip
        (tmp_path / name).write_text("x")
    _remove_stale(tmp_path, {"model-00001-of-00002.safetensors"})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["mine.safetensors", "model-00001-of-00002.safetensors"]


def test_an_earlier_runs_records_are_kept(tmp_path):
    for text in ("first", "second", "third"):
        with Recorder(tmp_path, tensorboard=False) as recorder:
            recorder.hear(0, {"kind": "notice", "text": text})
    told = [(tmp_path / f"metrics{n}.jsonl").read_text() for n in (".1", ".2", "")]
    assert ["first" in told[0], "second" in told[1], "third" in told[2]] == [True] * 3


def test_a_page_shows_records_and_never_runs_them(tmp_path):
    import json
    from pathlib import Path

    recorded = Path(__file__).parent / "data/recorded_run/metrics.jsonl"
    hostile = "<img src=x onerror=alert(1)>\x1b[2J"
    for at, line in enumerate(recorded.read_text().splitlines()):
        for key in json.loads(line):
            lines = recorded.read_text().splitlines()
            record = json.loads(line)
            record[key] = hostile if key != "kind" else record[key]
            lines[at] = json.dumps(record)
            (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            try:
                page = page_of(tmp_path / "metrics.jsonl")
            except SpecError:
                continue
            assert "<img" not in page and "\x1b" not in page, (line[:60], key)
