"""Devices as the shipped table of data sheets and measured matrix-multiply rates has them."""

from __future__ import annotations

import csv
import io
from functools import cache

from meshwright.evidence.rows import read_table
from meshwright.specs.cluster import Device
from meshwright.specs.errors import SpecError

_NAMES = {
    "v100-16g": "V100 SXM 16GB", "v100-32g": "V100 SXM 32GB", "a100-40g": "A100 SXM 40GB",
    "a100-80g": "A100 SXM 80GB", "h100": "H100 SXM 80GB", "h200": "H200 SXM 141GB",
    "b200": "B200 SXM", "b300": "B300 SXM", "gb200": "GB200 (per GPU)", "gb300": "GB300 (per GPU)",
    "mi250x": "MI250X (2 GCD)", "mi300x": "MI300X", "mi325x": "MI325X", "mi355x": "MI355X",
    "l40s": "L40S", "l4": "L4", "a10g": "A10G", "tpu-v4": "TPU v4", "tpu-v5e": "TPU v5e",
    "tpu-v5p": "TPU v5p", "tpu-v6e": "TPU v6e", "trainium1": "Trainium1 (chip = 2 NeuronCores)",
    "trainium2": "Trainium2",
}  # fmt: skip
_SMS = {"v100": 80, "a100": 108, "h100": 132, "h200": 132, "b200": 148, "b300": 148, "gb": 148}


@cache
def device_preset(key: str) -> Device:
    """Return a device by its short name.

    Raises:
        SpecError: no such device in the table.
    """
    for row in csv.DictReader(io.StringIO(read_table("hardware"))):
        if row["accelerator"] != _NAMES.get(key):
            continue
        cores = 2.0 if key == "trainium1" else 1.0
        peak = float(row["peak_bf16_dense_tflops"]) * 1e12 / cores
        peaks = {"bf16": peak, "fp16": peak, "fp32": peak / 16}
        if row["peak_fp8_dense_tflops"]:
            peaks["fp8"] = float(row["peak_fp8_dense_tflops"]) * 1e12 / cores
        gib = row["memory_gb"] in ("16", "32", "40", "80")
        memory = float(row["memory_gb"] or 288) * (2**30 if gib else 1e9)
        return Device(
            name=row["accelerator"],
            peak_flops=peaks,
            memory_bytes=memory / cores,
            memory_bandwidth_bytes_s=float(row["hbm_bw_tb_s"] or 8) * 1e12 / cores,
            sms=next((sms for name, sms in _SMS.items() if key.startswith(name)), 108),
            source=row["source"],
        )
    raise SpecError("device", key, f"known: {', '.join(_NAMES)}")
