"""What doctor looks at: the machine and the container from outside, and what the readers see in a few seconds.

`doctor.py` calls `look_around` and `watch` and hands the result to the checks. Devices are touched by the readers alone, so
that one that hangs cannot take doctor with it; nothing here judges, and no content of a secret file is kept.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import numpy as np

from exporter.clock import Clock
from exporter.config import Config
from exporter.history import History
from exporter.listening import ServerError, listen, parse_address
from exporter.live import LiveFeed
from exporter.model import EMPTY, Inventory, Quarantine, Record, SourceHealth, TransportVerdict
from exporter.session import Session
from exporter.signals import rates, sensor
from exporter.web_config import WebConfigError
from exporter.web_config import load as load_web_config

# The only variables of the environment that are looked at: what a container is shown of the GPUs.
VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SENSORS = (("power", "power_watts"), ("bytes", "transmit_bytes_total"), ("bytes", "nvlink_transmit_bytes_total"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine without its devices."""

    kernel: str
    python: str
    packages: Mapping[str, str | None]  # name -> version, None: not installed
    user_id: int
    container: str | None  # what shows that this is one; None: no container
    variables: Mapping[str, str]
    driver: str | None  # version of the loaded kernel module; None: not loaded, or not visible
    device_files: Mapping[str, bool]  # name below /dev -> whether it may be opened for reading and writing
    mounts: Mapping[str, tuple[str, str | None]]  # flag -> root, and why it is no good (None: good)
    listening: str | None  # why the daemon's address cannot be listened on
    web_config: str | None  # why the web configuration cannot be used


@dataclass(frozen=True, slots=True)
class Cost:
    """What reading one source cost. median_s and longest_s of a read; share of the time; None: never read."""

    median_s: float | None
    longest_s: float | None
    share: float


@dataclass(frozen=True, slots=True)
class Sensor:
    """How often a sensor takes a new value; None: it stood still, or moved too little to tell."""

    kind: str
    id: str
    quantity: str
    refresh_s: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the readers saw. first_s: seconds from the start to the first inventory of both; None: it never came whole."""

    seconds: float
    first_s: float | None
    missing: str | None  # the reader that said nothing
    inventory: Inventory = field(default_factory=lambda: Inventory("", 0.0))
    sources: tuple[SourceHealth, ...] = ()
    costs: Mapping[str, Cost] = field(default_factory=lambda: EMPTY)
    quarantined: tuple[Quarantine, ...] = ()
    sensors: tuple[Sensor, ...] = ()
    transport: TransportVerdict = field(default_factory=lambda: TransportVerdict("unknown", "settling"))
    told: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    silent: tuple[str, ...] = ()  # channels that gave no value at all

    def reason(self, source: str) -> str | None:
        """Why a kind of source is down as a whole; None where it is not."""
        return next((s.reason or "unknown" for s in self.sources if s.source == source and not s.up), None)


def look_around(config: Config, dev: Path = Path("/dev"), environment: Mapping[str, str] | None = None) -> Surroundings:
    """Versions, permissions and mounts."""
    given = os.environ if environment is None else environment
    return Surroundings(
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: _version(name) for name in needed_packages()},
        user_id=os.geteuid(),
        container=_container(given),
        variables={name: given[name] for name in VARIABLES if name in given},
        driver=_driver(Path(config.path_procfs)),
        device_files={p.name: os.access(p, os.R_OK | os.W_OK) for p in sorted(dev.glob("nvidia*")) if not p.is_dir()},
        mounts={
            "--path.sysfs": (config.path_sysfs, _mount_fault(Path(config.path_sysfs), "class")),
            "--path.procfs": (config.path_procfs, _mount_fault(Path(config.path_procfs), "stat")),
        },
        listening=_listening_fault(config.web_listen_address),
        web_config=_web_fault(config.web_config_file),
    )


def needed_packages() -> list[str]:
    """The packages that this one needs at run time, by its own metadata; nvidia-ml-py alone where it has none."""
    try:
        lines = requires("overlap-exporter") or []
    except PackageNotFoundError:
        lines = ["nvidia-ml-py"]
    names = (_PACKAGE_NAME.match(line) for line in lines if "extra ==" not in line)
    return [match.group() for match in names if match]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _container(environment: Mapping[str, str]) -> str | None:
    """What says that this is a container: the marks of docker, podman and Kubernetes, or systemd's file."""
    for mark in ("/.dockerenv", "/run/.containerenv"):
        if Path(mark).exists():
            return mark
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes"
    try:
        return Path("/run/systemd/container").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _driver(procfs: Path) -> str | None:
    """The version in /proc/driver/nvidia/version ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ...")."""
    try:
        words = (procfs / "driver/nvidia/version").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return None
    return next((w for w in words if w[:1].isdigit() and "." in w), None)


def _mount_fault(root: Path, needed: str) -> str | None:
    if not root.is_dir():
        return "is not there"
    if not os.access(root, os.R_OK | os.X_OK):
        return "may not be read by this user"
    return None if (root / needed).exists() else f"holds no {needed}: it is not the mount it is meant to be"


def _listening_fault(address: str) -> str | None:
    try:
        for line in listen(*parse_address(address)):
            line.close()
    except (ServerError, socket.gaierror) as error:
        return str(error)
    return None


def _web_fault(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        load_web_config(path)
    except WebConfigError as error:
        # The whole message may quote a value, and this file holds secrets: name the place only.
        place = str(error).removeprefix(f"{path}: ").split(":", 1)[0].split(".", 1)[0]
        return f"{path}: {place} is not accepted"
    return None


def watch(config: Config, clock: Clock, seconds: float) -> Seen:
    """Run the readers as the daemon does, for so long after both have said what there is. From the main thread."""
    feed = LiveFeed(config, clock, platform.node())
    session = Session(config.analysis_windows_seconds, config.analysis_verdict_window_seconds)
    durations_s: dict[str, list[float]] = defaultdict(list)
    values: dict[str, bool] = {}
    first_s = None
    try:
        while feed.now_s() < seconds + (first_s or 0.0):
            for event in feed.poll(session.next_due_s):
                session.take(event)
                if isinstance(event, Record):
                    durations_s[event.source].append(event.duration_s)
                    _note(values, session.history, event)
            session.advance(feed.now_s())
            if first_s is None and feed.starting() is None:
                first_s = feed.now_s()
        history, elapsed_s = session.history, feed.now_s()
        return Seen(
            seconds=elapsed_s, first_s=first_s, missing=feed.starting(), inventory=session.inventory, sources=history.health(),
            costs={name: _cost(times_s, elapsed_s) for name, times_s in durations_s.items()},
            quarantined=history.quarantined(), sensors=_sensors(history, elapsed_s), transport=session.verdicts.transport,
            told=feed.told(), silent=tuple(channel for channel, given in values.items() if not given),
        )
    finally:
        feed.stop()


def _note(values: dict[str, bool], history: History, record: Record) -> None:
    """Whether each channel of a source has ever given a value."""
    source = next((s for s in history.inventory.sources if s.name == record.source), None)
    if source is not None:
        for channel, value in zip(source.channels, record.values, strict=False):
            values[channel] = values.get(channel, False) or value == value  # not NaN


def _cost(durations_s: Sequence[float], elapsed_s: float) -> Cost:
    return Cost(float(np.median(durations_s)), max(durations_s), sum(durations_s) / elapsed_s)


def _sensors(history: History, now_s: float) -> tuple[Sensor, ...]:
    found = []
    channels = {c for s in history.inventory.sources for c in s.channels}
    for device in history.inventory.devices:
        for quantity, key in _SENSORS:
            channel = f"{device.id}/{key}"
            if channel in channels and device.kind != "disk":
                found.append(Sensor(device.kind, device.id, quantity, _refresh(history, channel, quantity, now_s)))
    return tuple(found)


def _refresh(history: History, channel: str, quantity: str, now_s: float) -> float | None:
    t, value = history.series(channel, -1.0, now_s)
    known = ~np.isnan(value)
    t, value = t[known], value[known]
    if len(t) < 10:
        return None
    if quantity == "power":
        measured = sensor.measured_refresh(t, value)
    else:
        poll_s = rates.poll_interval(t)
        measured = sensor.volley_refresh(t, value, poll_s)
        measured = sensor.counter_refresh(t, value, poll_s) if np.isnan(measured) else measured
    return None if np.isnan(measured) else float(measured)
