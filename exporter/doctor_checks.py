"""The checks of doctor: what each looks at, how it judges, and what to do. A new check is one function and one row of CHECKS.

`doctor.py` runs them over what `doctor_look` has seen. "fail" is something without which there is no verdict, or that was
asked for; "warn" is something that costs a part of the answers. Nothing here reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter import doctor_gpus
from exporter.doctor_verdict import FAIL, OK, WARN, Check, Facts, Verdict
from exporter.meanings import TRANSPORT_REASONS, TRANSPORTS

_SLOW_START_S = 3.0
_MISSED_SHARE = 0.05  # of the ticks
_DEAR_SHARE = 0.02  # of a device's time, as the readers have it


# --- settings and surroundings --------------------------------------------------------------------------------------


def _configuration(facts: Facts) -> Iterator[Verdict]:
    for problem in facts.problems:
        yield Verdict(FAIL, problem, "correct the file; until then this answer is for the default settings")
    if not facts.problems:
        yield Verdict(OK, "the settings are accepted")
    if (fault := facts.around.web_config) is not None:
        yield Verdict(FAIL, fault, "run `overlap-exporter serve` with this file to see why")


def _address(facts: Facts) -> Iterator[Verdict]:
    address = facts.config.web_listen_address
    if (fault := facts.around.listening) is None:
        yield Verdict(OK, f"{address} is free")
    elif "is taken" in fault:
        yield Verdict(WARN, fault, "nothing, if that is the daemon which runs here already")
    else:
        yield Verdict(FAIL, fault, "choose another --web.listen-address")


def _packages(facts: Facts) -> Iterator[Verdict]:
    missing = [name for name, version in facts.around.packages.items() if version is None]
    if facts.seen.reason("nvml") == "foreign_pynvml_package":
        yield Verdict(FAIL, f"another package hides nvidia-ml-py: {facts.seen.told.get('detail')}",
                      "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py")  # fmt: skip
    elif missing:
        yield Verdict(FAIL, f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Verdict(OK, f"nvidia-ml-py {facts.around.packages['nvidia-ml-py']}, Python {facts.around.python}")


def _mounts(facts: Facts) -> Iterator[Verdict]:
    for flag, (root, fault) in facts.around.mounts.items():
        if fault is None:
            yield Verdict(OK, f"{root} can be read")
        else:
            yield Verdict(FAIL, f"{root} {fault}", f"mount the node's, read-only, and point {flag} at it")


def _container(facts: Facts) -> Iterator[Verdict]:
    around = facts.around
    shown = around.variables.get("NVIDIA_VISIBLE_DEVICES")
    told = ", ".join(f"{name}={value}" for name, value in around.variables.items())
    if around.container is None:
        yield Verdict(OK, "not in a container" + (f"; {told}" if told else ""))
    elif shown in ("void", "none", ""):
        yield Verdict(FAIL, f"in a container ({around.container}) that is shown no GPU: {told}",
                      "set NVIDIA_VISIBLE_DEVICES=all for this container")  # fmt: skip
    elif "utility" not in (capabilities := around.variables.get("NVIDIA_DRIVER_CAPABILITIES", "utility")) and (
        capabilities != "all"
    ):
        yield Verdict(FAIL, f"in a container ({around.container}) without NVML: {told}",
                      "set NVIDIA_DRIVER_CAPABILITIES=utility for this container")  # fmt: skip
    else:
        yield Verdict(OK, f"in a container ({around.container})" + (f"; {told}" if told else ""))


# --- network and host -----------------------------------------------------------------------------------------------


def _rdma(facts: Facts) -> Iterator[Verdict]:
    seen = facts.seen
    ports, reason = seen.inventory.of_kind("rdma_port"), seen.reason("rdma")
    if hint := seen.told.get("rdma_hint"):
        yield Verdict(FAIL, reason or "some RDMA devices are not visible", str(hint))
    elif not ports:
        yield Verdict(WARN, f"no RDMA port: {reason or 'the reader said nothing'}",
                      "nothing, on a node without RDMA; else load the driver, or mount the node's /sys")  # fmt: skip
    left_alone = {q.id: q.reason for q in seen.quarantined}
    for port in ports:
        told = f"{port.id} ({port.driver or 'driver not known'}): bytes from {port.info.get('byte_source', 'nowhere')}"
        if bonded := port.info.get("bond_bytes"):
            told += f", of the links {port.info.get('bond_links')} ({bonded})"
        fault = left_alone.get(port.id) or left_alone.get(port.id.rsplit("/", 1)[0])
        mute = [c for c in seen.silent if c.startswith(f"{port.id}/") and c.endswith("_bytes_total")]
        if fault:
            yield Verdict(FAIL, f"{port.id} is left alone: {fault}", "its files do not answer: see the log of its driver")
        elif "byte_source" not in port.info or mute:
            yield Verdict(WARN, f"{told}, which gave no number", "its traffic is not seen; report driver and firmware")
        elif bonded == "one port of several":
            yield Verdict(WARN, told, "its bytes are too few by those of the other links; when they flow is right all the same")
        elif port.info.get("state") == "inactive":
            yield Verdict(WARN, f"{told}, and the port is down", "look at its cable and at the switch, if the job is to use it")
        else:
            yield Verdict(OK, told)
    if names := seen.told.get("rdma_left_out"):
        yield Verdict(OK, f"no ports of a job, left out: {', '.join(names)} (switches, or management of NVSwitches)")


def _interfaces(facts: Facts) -> Iterator[Verdict]:
    nics = [d for d in facts.seen.inventory.of_kind("nic") if d.info.get("kind") != "bond"]
    if nics:
        yield Verdict(OK, f"{len(nics)}: {', '.join(d.id for d in nics)}")
    else:
        yield Verdict(WARN, "no network interface is read", "in a container: use the node's network (hostNetwork), "
                      "so that a job over TCP is seen")  # fmt: skip


# Source and reason -> what to do.
_OTHER_REMEDIES = {
    ("pods", "permission_denied"): "the kubelet's socket lets root in alone: run as user 0, without any capability",
    ("pods", "missing"): "mount the kubelet's directory pod-resources, and name its socket under pods.socket",
    ("pods", "timeout"): "the kubelet does not answer: see its log; the last answer stays in force for 15 minutes",
    ("pods", "protocol"): "no kubelet of 1.20 or later listens there: see pods.socket",
    ("jobs", "missing"): "nothing, while no job has run: the prolog makes the directory; else see jobs.directory",
    ("jobs", "permission_denied"): "let everybody read the directory: chmod 755",
}


def _others(facts: Facts) -> Iterator[Verdict]:
    """Sources of other kinds that say themselves why they give nothing."""
    for source in facts.seen.sources:
        if not source.up and source.source.split("/", 1)[0] not in ("nvml", "gpm", "rdma", "nic", "xid"):
            remedy = _OTHER_REMEDIES.get((source.source, source.reason or ""), "see docs/configuration.md")
            yield Verdict(WARN, f"{source.source}: {source.reason}", remedy)
    if any(s.source == "host/all" and s.reads for s in facts.seen.sources):
        yield Verdict(OK, "disks, network file systems and waiting CPUs of the host are read")


# --- what was measured ----------------------------------------------------------------------------------------------


def _readers(facts: Facts) -> Iterator[Verdict]:
    seen = facts.seen
    if seen.missing is not None:
        yield Verdict(FAIL, f"{seen.missing} said nothing for {seen.seconds:.0f} s", "a device or a tree does not answer")
    elif seen.first_s is not None and seen.first_s > _SLOW_START_S:
        yield Verdict(WARN, f"opening all devices took {seen.first_s:.1f} s",
                      "persistence mode is likely off: run nvidia-persistenced")  # fmt: skip
    elif seen.first_s is not None:
        yield Verdict(OK, f"all devices were opened in {seen.first_s:.1f} s")


def _costs(facts: Facts) -> Iterator[Verdict]:
    seen = facts.seen
    planned = {s.name: s.interval_s for s in seen.inventory.sources}
    cheap = 0
    for source in seen.sources:
        cost, interval_s = seen.costs.get(source.source), planned.get(source.source)
        if cost is None or interval_s is None or cost.median_s is None:
            continue
        in_force_s = source.interval_s or interval_s
        told = f"{source.source}: {_ms(cost.median_s)} a read, {_ms(cost.longest_s)} at most, each {_ms(in_force_s)}"
        if in_force_s > interval_s or cost.median_s > _DEAR_SHARE * in_force_s:
            yield Verdict(WARN, told, f"reads are slow: instead of each {_ms(interval_s)} it is read less often, "
                          "so as not to cost the job time")  # fmt: skip
        elif source.missed_ticks > _MISSED_SHARE * (source.reads + source.missed_ticks):
            yield Verdict(WARN, f"{told}; {source.missed_ticks} of {source.reads + source.missed_ticks} were left out",
                          "the exporter gets too little CPU time: raise its CPU request, remove its limit")  # fmt: skip
        else:
            cheap += 1
    if cheap:
        longest_s = max(c.median_s or 0.0 for c in seen.costs.values())
        share = sum(c.share for c in seen.costs.values())
        yield Verdict(OK, f"{cheap} sources in time; the dearest takes {_ms(longest_s)} a read, all reads together "
                      f"{share:.1%} of one core's time at most")  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms"


def _refresh(facts: Facts) -> Iterator[Verdict]:
    gpus = {d.id: d for d in facts.seen.inventory.of_kind("gpu")}
    known = 0
    for sensor in facts.seen.sensors:
        expected_s = gpus[sensor.id].power_refresh_s if sensor.quantity == "power" and sensor.id in gpus else None
        if sensor.refresh_s is None:
            continue
        known += 1
        if expected_s is not None and sensor.refresh_s > 1.5 * expected_s:
            yield Verdict(WARN, f"{sensor.id}: power is new each {_ms(sensor.refresh_s)}, expected {_ms(expected_s)}",
                          "what was measured is used; fast rhythms may be unobservable here")  # fmt: skip
    count = len(facts.seen.sensors)
    if count:
        rest = "; the others stood still or showed no change of their own: run it while a job runs" if known < count else ""
        yield Verdict(OK, f"measured for {known} of {count} sensors{rest}")


def _pairing(facts: Facts) -> Iterator[Verdict]:
    inventory = facts.seen.inventory
    gpus, ports = inventory.of_kind("gpu"), inventory.of_kind("rdma_port")
    for gpu in gpus:
        links = [k for k in inventory.links if k.gpu_id == gpu.id]
        told = ", ".join(f"{'NVLink' if k.device_id == gpu.id else k.device_id} ({k.reason})" for k in links)
        if any(k.reason == "guess" for k in links):
            yield Verdict(WARN, f"{gpu.id}: {told}", "the PCI tree does not tell: set pairing.links")
        elif links and (not ports or any(k.path == "rdma" for k in links)):
            yield Verdict(OK, f"{gpu.id}: {told}")
        elif ports:
            yield Verdict(WARN, f"{gpu.id}: no RDMA port" + (f", but {told}" if told else ""), "set pairing.links")
        else:
            yield Verdict(WARN, f"{gpu.id}: nothing that could carry its traffic", "over TCP it is found while a job runs")


def _transport(facts: Facts) -> Iterator[Verdict]:
    verdict = facts.seen.transport
    reason = TRANSPORT_REASONS.get(verdict.reason)
    told = f"{TRANSPORTS[verdict.transport].of('en')} {reason.of('en') if reason else verdict.reason}"
    fell_back = verdict.transport in ("tcp", "mixed") and facts.seen.inventory.of_kind("rdma_port")
    if fell_back:
        yield Verdict(WARN, told, "NCCL_DEBUG=INFO says why RDMA was not taken: look for NET/IB in the job's log")
    else:
        yield Verdict(OK, told)


def _required(facts: Facts) -> Iterator[Verdict]:
    kinds = {"gpu": "gpu", "rdma": "rdma_port"}
    for name in facts.config.require:
        if not facts.seen.inventory.of_kind(kinds[name]):
            yield Verdict(FAIL, f"--require {name}: none was found", "`serve` would not start here")


CHECKS: tuple[Check, ...] = (
    Check("configuration", "the configuration file and the web configuration file", _configuration),
    Check("address", "whether the daemon could listen", _address),
    Check("packages", "the packages that it runs on, and whether one hides another", _packages),
    Check("mounts", "the roots of sysfs and procfs", _mounts),
    Check("container", "whether this is a container, and what it is shown of the GPUs", _container),
    Check("required", "what the settings require", _required),
    Check("readers", "whether both readers answer, and how soon", _readers),
    Check("nvml", "library, driver, device files", doctor_gpus.nvml),
    Check("gpu count", "GPUs on the PCI bus against those of NVML", doctor_gpus.counts),
    Check("gpu", "where the power of each GPU comes from", doctor_gpus.gpus),
    Check("rdma", "the ports, and where their bytes come from", _rdma),
    Check("nic", "the network interfaces", _interfaces),
    Check("others", "host, pods and jobs", _others),
    Check("cost", "how long reads take, and whether all are made", _costs),
    Check("refresh", "how often sensors take a new value", _refresh),
    Check("pairing", "which ports belong to which GPU, and why", _pairing),
    Check("transport", "which way the traffic goes", _transport),
)
