"""The checks of doctor that look at GPUs: the library, the driver, each board. `doctor_checks` has them in its table."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.doctor_verdict import FAIL, OK, WARN, Facts, Verdict
from exporter.model import Device

_RUNTIME = "in a container: the runtime class of the NVIDIA container toolkit, NVIDIA_VISIBLE_DEVICES=all"
# Why NVML as a whole gave nothing -> what to do.
_NVML_REMEDIES = {
    "library_not_found": f"install the NVIDIA driver, or name the library with --nvml.library; {_RUNTIME}",
    "binding_not_installed": "pip install nvidia-ml-py",
    "driver_not_loaded": "load the driver (modprobe nvidia); it is read as soon as it is there",
    "library_driver_mismatch": "the driver was upgraded under the library: reboot or reload the driver; "
                               "restart the container, whose library is that of the old driver",
    "no_gpus": f"a driver without GPUs: see `dmesg | grep -i nvrm`; {_RUNTIME}",
    "no_permission": "run as a user that may open /dev/nvidia* for reading and writing",
    "unknown_error": "in a container: its rights to /dev/nvidia* were lost (systemctl daemon-reload does that): restart it",
    "library_hangs": "the driver does not answer: see `dmesg | grep -iE 'xid|nvrm'`; a reboot is likely to be needed",
    "devices_hang": "three GPUs hang in the driver: see `dmesg | grep -iE 'xid|nvrm'`",
}  # fmt: skip
_DEVICE_REMEDIES = {
    "hang": "see `dmesg | grep -iE 'xid|nvrm'`; reset the GPU once no job uses it, or reboot",
    "crash": "the driver's library crashes on this GPU: report it with the driver's version; the others are read",
    "gpu_lost": "it fell off the bus (XID 79): reboot the node; if it comes again, have the board looked at",
    "reset_required": "nvidia-smi --gpu-reset -i INDEX once no job uses it",
    "insufficient_power": "connect its power cables",
}


def nvml(facts: Facts) -> Iterator[Verdict]:
    """The library, the driver and the device files."""
    seen, around = facts.seen, facts.around
    found, reason = seen.inventory.of_kind("gpu"), seen.reason("nvml")
    versions = sorted({d.info.get("driver_version", "") for d in found} - {""})
    closed = [name for name, opens in around.device_files.items() if not opens]
    pci = seen.told.get("pci_gpus")
    if reason is None and found:
        yield Verdict(OK, f"{len(found)} GPUs, driver {', '.join(versions) or 'unknown'}")
        return
    yield Verdict(FAIL, f"no GPU can be read: {reason or 'the reader of GPUs said nothing'}"
                  + (f" ({detail})" if (detail := seen.told.get("detail")) else ""),
                  _NVML_REMEDIES.get(reason or "", "see the log of `overlap-exporter serve --log.level debug`"))  # fmt: skip
    yield Verdict(WARN, f"display functions on the PCI bus: {'not known' if pci is None else pci}; kernel driver: "
                  f"{around.driver or 'not loaded, or not visible here'}; device files: "
                  f"{', '.join(around.device_files) or 'none'}")  # fmt: skip
    if closed:
        yield Verdict(FAIL, f"user {around.user_id} may not open {', '.join(closed)}", _NVML_REMEDIES["no_permission"])


def counts(facts: Facts) -> Iterator[Verdict]:
    """GPUs on the PCI bus against those of NVML."""
    pci, own = facts.seen.told.get("pci_gpus"), facts.seen.told.get("nvml_gpus")
    if pci is None or own is None:
        return
    if pci > own:
        yield Verdict(WARN, f"{pci} on the PCI bus, {own} in NVML",
                      "a GPU has failed, is bound to another driver (vfio), or is not shown to this container")  # fmt: skip
    else:
        yield Verdict(OK, f"{pci} on the PCI bus, {own} in NVML")


def gpus(facts: Facts) -> Iterator[Verdict]:
    """Each GPU: whether it is read, and where its power comes from."""
    alone = {q.id: q.reason or "" for q in facts.seen.quarantined if q.kind == "gpu"}
    for gpu in facts.seen.inventory.of_kind("gpu"):
        if gpu.id in alone:
            yield Verdict(FAIL, f"{_name(gpu)} is left alone: {alone[gpu.id]}",
                          _DEVICE_REMEDIES.get(alone[gpu.id], "see the log of the driver"))  # fmt: skip
        else:
            yield _power(facts, gpu)


def _power(facts: Facts, gpu: Device) -> Verdict:
    mig = " (MIG: power of the whole board, no utilisation)" if gpu.info.get("mig") == "1" else ""
    told = f"{_name(gpu)}: power from {gpu.power_source or 'nowhere'}{mig}"
    if f"{gpu.id}/power_watts" in facts.seen.silent or gpu.power_source is None:
        return Verdict(FAIL, f"{told}, and no reading of it", "there is no verdict without power: a vGPU, or an old driver?")
    if gpu.power_source == "average":
        return Verdict(WARN, f"{told}, which is a mean over a second", "steps shorter than two seconds cannot be judged; "
                       "a driver from R525 on gives momentary power")  # fmt: skip
    if gpu.power_source == "module":
        return Verdict(WARN, f"{told}, which has the CPU in it", "the rhythm is judged, levels are those of the module")
    return Verdict(WARN if mig else OK, told, "a verdict is for the board, if one job owns it" if mig else "")


def _name(gpu: Device) -> str:
    return f"{gpu.id} ({gpu.name})" if gpu.name else gpu.id
