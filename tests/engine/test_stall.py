"""A file system that does not answer is said while it lasts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from meshwright.engine.watch.stall import StallWatch


def test_a_folder_that_stops_answering_and_comes_back_is_said(tmp_path):
    gate, told = threading.Event(), []
    watch = StallWatch(
        tmp_path, quiet_s=0.1, answer_s=0.1, ask=lambda _: gate.wait(), tell=told.append
    )
    with watch:
        deadline = time.monotonic() + 120
        while len(told) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        gate.set()
        while "answers again" not in told[-1] and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "has not answered" in told[0]
    assert str(tmp_path) in told[0]
    assert "answers again" in told[-1]
    assert 2 <= len(told) < 12  # ever more rarely


def test_a_run_that_speaks_is_not_asked(tmp_path):
    asked, spoken = [], []
    with StallWatch(tmp_path, quiet_s=0.4, answer_s=1.0, ask=asked.append) as watch:
        for _ in range(40):
            watch.heard()
            spoken.append(time.monotonic())
            time.sleep(0.02)
    # A busy machine may hold this test itself up for so long that it was silent.
    silent = max(after - before for before, after in pairwise(spoken)) >= 0.35
    assert not asked or silent


def test_silence_with_a_folder_that_answers_is_nobodys_fault(tmp_path):
    told, asked = [], []
    with StallWatch(tmp_path, quiet_s=0.05, answer_s=5.0, ask=asked.append, tell=told.append):
        deadline = time.monotonic() + 120
        while len(asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(asked) >= 2
    assert not told


RUN = """
import sys
from meshwright.engine.watch import stall
stall.QUIET_S, stall.ANSWER_S = 1.0, 1.0
stall.StallWatch.__init__.__kwdefaults__.update(quiet_s=1.0, answer_s=1.0)
from meshwright.cli import run
if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.dist
def test_a_run_on_a_frozen_volume_says_so_and_goes_on_when_it_thaws(tmp_path):
    tools = ("mkfs.ext4", "fsfreeze", "mount")
    if os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip("freezing a volume needs root and " + ", ".join(tools))
    image, volume, script = tmp_path / "image", tmp_path / "volume", tmp_path / "script.py"
    image.write_bytes(bytes(48 << 20))
    volume.mkdir()
    script.write_text(RUN)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, volume], capture_output=True).returncode:
        pytest.skip("no loop device may be mounted here")
    command = [
        sys.executable, script, "train", "toy", "--dp", "2", "--out", volume / "run", "--steps", "100",
        "--seq", "32", "--no-tensorboard", "--no-history", "--json",
    ]  # fmt: skip
    thaw = ["fsfreeze", "-u", volume]
    # Should nothing be said, the run ends none the less, and the test with it.
    late = threading.Timer(300.0, lambda: subprocess.run(thaw, check=False))
    try:
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for line in process.stdout:
            if '"step":3,' in line:
                subprocess.run(["fsfreeze", "-f", volume], check=True)
                late.start()
                break
        said = next(line for line in process.stderr if "not answered" in line)
        assert str(volume / "run") in said
        subprocess.run(thaw, check=True)
        _, rest = process.communicate(timeout=600)
        assert process.returncode == 0
        assert "answers again" in rest
    finally:
        late.cancel()
        subprocess.run(thaw, check=False, capture_output=True)
        process.kill()
        process.wait()
        subprocess.run(["umount", volume], check=False)
