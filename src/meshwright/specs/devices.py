"""Devices from presets or from a table in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.specs import presets
from meshwright.specs.cluster import Device
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import parse_bandwidth, parse_bytes, parse_seconds
from meshwright.specs.sharing import part_of

_UNITS: dict[str, tuple[str, Callable[[object, str], float]]] = {
    "memory": ("memory_bytes", parse_bytes),
    "memory_bandwidth": ("memory_bandwidth_bytes_s", parse_bandwidth),
    "host_link": ("host_link_bytes_s", parse_bandwidth),
    "l2": ("l2_bytes", parse_bytes),
    "launch": ("launch_s", parse_seconds),
}
"""Short spellings that take a unit, the field each one fills, and its parser."""


def device_names() -> list[str]:
    """Names of the device presets, in the order of the data file."""
    return list(presets.table("devices"))


def load_device(what: str | Mapping[str, Any] | Device, field: str = "device") -> Device:
    """Return a device from a preset name, a table of fields, or itself.

    A table may name a preset as `base` and override some of its numbers. Sizes and rates may be
    given with units under their short names: `memory = "80GiB"`, `memory_bandwidth = "2TB/s"`,
    `l2`, `launch`, `peak_tflops = { bf16 = 312 }`. `shared = { processes = 4, how = "mps" }` makes it one
    process' part of the card.

    Raises:
        SpecError: unknown preset (with the nearest names), unknown field, impossible number.
    """
    if isinstance(what, Device):
        return what
    if isinstance(what, str):
        name = presets.find("devices", what, field)
        return _device({**presets.table("devices")[name], "preset": name}, field)
    if not isinstance(what, Mapping):
        raise SpecError(field, what, "a preset name or a table of fields is expected")
    given = dict(what)
    if "shared" in given:
        shared = given.pop("shared")
        return part_of(load_device(given, field), shared, f"{field}.shared")
    base = given.pop("base", None)
    if base is None:
        return _device(given, field)
    # The preset's validated fields first, so that a table overrides either spelling of a number.
    fields = load_device(base, f"{field}.base").model_dump()
    changed = _plain_fields(given, field)
    fields["source"] = f"{fields['source']}, changed: {', '.join(sorted(changed)) or 'nothing'}"
    return Device.parse({**fields, **changed}, field)


def unmeasured(device: Device) -> str | None:
    """A sentence where no measured rate of a device's matrix products is known; else None."""
    if device.matmul_efficiency or device.vendor == "cpu":
        return None
    return (
        f"no measurement of matrix products on {device.name} is known here: its times rest on its "
        "data sheet and on what kernels reach on other devices"
    )


def default_host(device: str) -> str:
    """Name of the host template (in clusters.toml) that holds a device preset."""
    return str(presets.table("devices")[device]["host"])


def _device(fields: dict[str, Any], field: str) -> Device:
    plain = _plain_fields(fields, field)
    if plain.get("preset") in presets.table("devices"):
        plain = {key: value for key, value in plain.items() if key not in ("aliases", "host")}
        plain.setdefault("source", f"preset {plain['preset']}")
    return Device.parse(plain, field)


def _plain_fields(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Replace the short spellings with units by the fields of `Device`."""
    plain = dict(fields)
    for short, (long, parse) in _UNITS.items():
        if short in plain:
            plain[long] = parse(plain.pop(short), f"{field}.{short}")
    if "peak_tflops" in plain:
        plain["peak_flops"] = _tera(plain.pop("peak_tflops"), f"{field}.peak_tflops")
    if "measured_tflops" in plain:
        measured = _tera(plain.pop("measured_tflops"), f"{field}.measured_tflops")
        peaks = plain.get("peak_flops", {})
        missing = [name for name in measured if not peaks.get(name)]
        if missing:
            raise SpecError(
                f"{field}.measured_tflops", missing[0], "needs a peak_tflops of the same precision"
            )
        plain["matmul_efficiency"] = {name: rate / peaks[name] for name, rate in measured.items()}
    return plain


def _tera(table: object, field: str) -> dict[str, float]:
    if not isinstance(table, Mapping) or not table:
        raise SpecError(field, table, "a table such as { bf16 = 312 } is expected")
    rates: dict[str, float] = {}
    for name, rate in table.items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e9:
            raise SpecError(f"{field}.{name}", rate, "a positive number of TFLOP/s is expected")
        rates[str(name)] = float(rate) * 1e12
    return rates
