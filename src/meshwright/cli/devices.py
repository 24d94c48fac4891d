"""`meshwright devices`: what is known about each accelerator, with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.specs.cluster import Device


def command(
    name: str | None = typer.Argument(None, help="One device: shows every number with its source."),
    as_json: options.AsJson = False,
) -> None:
    """List the device presets, or show one in full.

    Peaks are dense; memory is what a program sees; efficiency is the best measured matrix-multiply
    rate over the peak, where somebody measured it.
    """
    from meshwright.cli.output import print_json
    from meshwright.specs.devices import device_names, load_device

    if name is not None:
        device = load_device(name)
        if as_json:
            print_json(device.plain())
            return
        _show_one(device)
        return
    devices = [load_device(known) for known in device_names()]
    if as_json:
        print_json([device.plain() for device in devices])
        return
    _show_all(devices)


def _show_one(device: Device) -> None:
    from meshwright.cli.output import print_table
    from meshwright.specs.presets import spelled_out
    from meshwright.specs.quantities import format_bytes

    source = device.sources
    peaks = [
        (f"peak {precision}", f"{rate / 1e12:g} TFLOP/s", source.get("peak_tflops", ""))
        for precision, rate in device.peak_flops.items()
    ]
    measured = [
        (f"measured {p}", f"{share * device.peak_flops[p] / 1e12:.1f} TFLOP/s ({share:.0%})",
         source.get("measured_tflops", ""))
        for p, share in device.matmul_efficiency.items()
    ]  # fmt: skip
    bandwidth = f"{device.memory_bandwidth_bytes_s / 1e12:g} TB/s"
    print_table(
        f"{device.name} ({device.preset})",
        ("quantity", "value", "source"),
        [
            ("memory", format_bytes(device.memory_bytes), source.get("memory", "")),
            ("memory bandwidth", bandwidth, source.get("memory_bandwidth", "")),
            *peaks,
            *measured,
            ("multiprocessors", str(device.sms), source.get("sms", "")),
            ("last-level cache", format_bytes(device.l2_bytes), "data sheet"),
            ("kernel launch", f"{device.launch_s * 1e6:g} µs", "assumed"),
            ("price", f"${device.price_per_hour:g}/h", "assumed: give your own"),
        ],
        note="\n".join(spelled_out([*source.values(), "data sheet"])),
    )


def _show_all(devices: list[Device]) -> None:
    from meshwright.cli.output import print_table

    print_table(
        "Devices",
        ("name", "GiB", "TB/s", "bf16", "fp8", "measured", "$/h", "device"),
        [
            (
                device.preset,
                f"{device.memory_bytes / 2**30:.1f}",
                f"{device.memory_bandwidth_bytes_s / 1e12:g}",
                f"{device.peak('bf16') / 1e12:g}",
                f"{device.peak_flops['fp8'] / 1e12:g}" if "fp8" in device.peak_flops else "–",
                f"{device.matmul_efficiency['bf16']:.0%}" if device.matmul_efficiency else "–",
                f"{device.price_per_hour:g}",
                device.name,
            )
            for device in devices
        ],
        right=range(1, 7),
        note="GiB that a program sees; TB/s of memory; dense peaks in TFLOP/s (fp16 where there is "
        "no bf16); measured: best bf16 matrix multiply over peak; price: assumed.\n"
        "`meshwright devices NAME` shows each number's source.",
        optional=(7, 6, 5),
    )
