"""How fast the studio's server is: ready after the command, and each kind of answer over HTTP.

    python benchmarks/studio_server.py [--rounds 15] [--browser]

The server runs in its own process, as a user starts it. Every request of a series differs, so that
nothing is answered from a cache of answers. `--browser` also moves sliders in a real Chromium and
measures from the input event to the changed picture.
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

SERIES = {
    "pipeline 1F1B, 4 × 8…": lambda i: f"/api/sim/pipeline?pp=4&m={8 + i}",
    "pipeline 1F1B, 8 × 64…": lambda i: f"/api/sim/pipeline?pp=8&m={64 + i}",
    "pipeline 1F1B, 16 × 128…": lambda i: f"/api/sim/pipeline?pp=16&m={128 - i}",
    "ZeRO calculator": lambda i: f"/api/sim/zero?parameters={7 + i}B",
    "ring all-reduce, 8 ranks": lambda i: f"/api/sim/all-reduce?ranks=8&size={16 + i}MB",
    "tensor split": lambda i: f"/api/sim/tensor?split=mlp&tp=4&seed={i}",
    "data-parallel step": lambda i: f"/api/sim/data-parallel?dp=8&batch=64&seed={i}",
    "3D grid": lambda i: f"/api/sim/grid?dp=8&pp=4&tp=8&node={8 * (1 + i % 2)}",
    "placement, 70B on 64": lambda i: f"/api/sim/placement?batch={256 + 64 * i}",
    "ledger": lambda i: f"/api/sim/ledger?model=llama2-7b&gpus={2 ** (1 + i % 5)}",
    "worked example": lambda i: f"/api/examples/W8?m={1 + i}",
    "lesson": lambda i: f"/api/lessons/{1 + i % 14}",
    "check, judged": lambda i: f"/api/checks/Q4/answer?given=27.3%25&seed={i}",
    "plan, 70B on 64 (a search)": lambda i: (
        f"/api/plan?model=llama2-70b&cluster=h100:8x8&batch={512 + 64 * i}"
    ),
}


def start() -> tuple[subprocess.Popen[str], str, float]:
    """Start the studio; returns the process, its address, and the seconds until it answered."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", "studio", "--no-browser"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = re.search(r"http://\S+?/(?=\s)", process.stdout.readline())
    assert url is not None
    with urllib.request.urlopen(f"{url[0]}api/health", timeout=30):
        return process, url[0].rstrip("/"), time.perf_counter() - began


def measure(base: str, rounds: int) -> Iterator[tuple[str, list[float], int]]:
    for name, path in SERIES.items():
        times, size = [], 0
        for i in range(rounds + 2):
            began = time.perf_counter()
            with urllib.request.urlopen(base + path(i), timeout=60) as answer:
                size = len(answer.read())
            times.append(time.perf_counter() - began)
        yield name, times[2:], size


def browser(base: str, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """From a slider's input event to the next changed picture, in a real Chromium."""
    from playwright.sync_api import sync_playwright

    places = {
        "pipeline 4 × 8": ("/#/sim/pipeline?pp=4&m=8", "m"),
        "pipeline 16 × 128": ("/#/sim/pipeline?pp=16&m=96", "m"),
        "ZeRO calculator": ("/#/sim/zero", "shards"),
        "data-parallel step": ("/#/sim/data-parallel", "seed"),
    }
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--disable-gpu"]
        )
        page = chromium.new_context(reduced_motion="reduce").new_page()
        for name, (place, control) in places.items():
            page.goto("about:blank")
            page.goto(base + place)
            page.wait_for_selector("main svg")
            yield name, [page.evaluate(MOVE, [control, i]) for i in range(rounds)]
        chromium.close()


MOVE = """async ([name, i]) => {
  const slider = document.querySelector(`main input[type=range][data-name="${name}"]`)
  const main = document.querySelector('main')
  const picture = () => [...main.querySelectorAll('svg[role=img], canvas')].map((s) => s.outerHTML).join()
  const before = picture()
  const began = performance.now()
  const high = Number(slider.max), at = Number(slider.value)
  slider.value = String(at < high ? at + 1 : Number(slider.min))
  slider.dispatchEvent(new Event('input', { bubbles: true }))
  for (;;) {
    await new Promise((done) => requestAnimationFrame(done))
    if (picture() !== before) break
    if (performance.now() - began > 5000) return NaN
  }
  return (performance.now() - began) / 1000
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--browser", action="store_true")
    chosen = parser.parse_args()
    readies = []
    for _ in range(2):
        process, base, ready = start()
        readies.append(ready)
        process.send_signal(signal.SIGINT)
        process.wait(10)
    process, base, ready = start()
    readies.append(ready)
    print(f"ready after {min(readies):.2f} s (best of 3; worst {max(readies):.2f} s)\n")
    print(f"{'answer':34}{'median ms':>10}{'worst ms':>10}{'KiB':>9}")
    for name, times, size in measure(base, chosen.rounds):
        print(
            f"{name:34}{1e3 * statistics.median(times):10.1f}{1e3 * max(times):10.1f}{size / 1024:9.1f}"
        )
    if chosen.browser:
        print(f"\n{'slider to picture':34}{'median ms':>10}{'worst ms':>10}")
        for name, times in browser(base, chosen.rounds):
            print(f"{name:34}{1e3 * statistics.median(times):10.1f}{1e3 * max(times):10.1f}")
    process.send_signal(signal.SIGINT)
    process.wait(10)


if __name__ == "__main__":
    main()
