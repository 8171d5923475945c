"""Settings: a frozen Config from defaults, a YAML file and flags, in that order. The only door to YAML.

`cli` parses the flags and calls `load`; `app` and `doctor` take what they need from the Config and pass plain arguments
on. Every complaint names the file, the key, the value and what is allowed. Nothing here touches a device.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from exporter.model import OneLineError

LOG_LEVELS = ("debug", "info", "warn", "error")
LOG_FORMATS = ("logfmt", "json")
REQUIRABLE = ("gpu", "rdma")
_LARGEST_FILE_BYTES = 1 << 20


class ConfigError(OneLineError):
    """Settings that cannot be used; `problems` holds one line each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Field names are the YAML keys with the section in front."""

    web_listen_address: str = ":9777"
    web_config_file: str | None = None
    log_level: str = "info"
    log_format: str = "logfmt"
    path_sysfs: str = "/sys"
    path_procfs: str = "/proc"
    nvml_library: str | None = None
    require: tuple[str, ...] = ()
    sampling_gpu_hertz: float = 10.0
    sampling_network_hertz: float | None = None
    sampling_host_hertz: float = 1.0
    quarantine_longest_pause_seconds: float = 600.0
    analysis_windows_seconds: tuple[float, ...] = (15.0, 60.0, 300.0)
    analysis_verdict_window_seconds: float = 60.0
    filters_gpu_include: tuple[str, ...] = ()
    filters_gpu_exclude: tuple[str, ...] = ()
    filters_rdma_include: tuple[str, ...] = ()
    filters_rdma_exclude: tuple[str, ...] = ()
    filters_nic_include: tuple[str, ...] = ()
    filters_nic_exclude: tuple[str, ...] = ()
    pairing_compute_ports: str | None = None
    pairing_topology_file: str | None = None
    pairing_links: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    pods_socket: str | None = None
    pods_interval_seconds: float = 10.0
    jobs_directory: str | None = None
    jobs_scheduler: str = "slurm"
    jobs_interval_seconds: float = 10.0
    recorder_directory: str | None = None
    recorder_quota_bytes: float = 200e6


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the YAML file: where it stands, what is allowed, how a value is read; `parse` raises ValueError."""

    key: str
    allowed: str
    parse: Callable[[Any], Any]

    @property
    def field(self) -> str:
        """The field of Config that this key fills."""
        return self.key.replace(".", "_")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return parse


def _number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError
        if not low <= value <= high:
            raise ValueError
        return float(value)

    return parse


def _optional_number(low: float, high: float) -> Callable[[Any], float | None]:
    number = _number(low, high)
    return lambda value: None if value is None else number(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError  # noqa: TRY004 (one kind of error for all settings)
    return tuple(_text(v) for v in value)


def _choices(choices: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        texts = _texts(value)
        if not set(texts) <= set(choices):
            raise ValueError
        return texts

    return parse


def _windows(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= 5:
        raise ValueError
    seconds = tuple(_number(5, 3600)(v) for v in value)
    if sorted(set(seconds)) != list(seconds):
        raise ValueError
    return seconds


def _links(value: Any) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004
    return MappingProxyType({_text(str(gpu)): _texts(devices) for gpu, devices in value.items()})


_PATTERNS = "a list of shell patterns, such as [mlx5_*]"
SETTINGS: tuple[Setting, ...] = (
    Setting("web.listen_address", "':port', 'host:port' or '[::1]:port'", _text),
    Setting("web.config_file", "the path of a web configuration file, or null", _optional_text),
    Setting("log.level", "one of " + ", ".join(LOG_LEVELS), _one_of(LOG_LEVELS)),
    Setting("log.format", "one of " + ", ".join(LOG_FORMATS), _one_of(LOG_FORMATS)),
    Setting("path.sysfs", "the path of a mounted sysfs", _text),
    Setting("path.procfs", "the path of a mounted procfs", _text),
    Setting("nvml.library", "the path of libnvidia-ml.so.1, or null to let the loader find it", _optional_text),
    Setting("require", "a list out of gpu, rdma", _choices(REQUIRABLE)),
    Setting("sampling.gpu_hertz", "a number from 1 to 50", _number(1, 50)),
    Setting("sampling.network_hertz", "a number from 1 to 100, or null for the plan of each driver", _optional_number(1, 100)),
    Setting("sampling.host_hertz", "a number from 0.1 to 10", _number(0.1, 10)),
    Setting("quarantine.longest_pause_seconds", "a number from 1 to 86400", _number(1, 86400)),
    Setting("analysis.windows_seconds", "one to five rising numbers from 5 to 3600", _windows),
    Setting("analysis.verdict_window_seconds", "one of analysis.windows_seconds", _number(5, 3600)),
    Setting("filters.gpu.include", _PATTERNS.replace("mlx5_*", "GPU-*") + " (index or UUID)", _texts),
    Setting("filters.gpu.exclude", _PATTERNS.replace("mlx5_*", "GPU-*") + " (index or UUID)", _texts),
    Setting("filters.rdma.include", _PATTERNS, _texts),
    Setting("filters.rdma.exclude", _PATTERNS, _texts),
    Setting("filters.nic.include", _PATTERNS.replace("mlx5_*", "eth*"), _texts),
    Setting("filters.nic.exclude", _PATTERNS.replace("mlx5_*", "eth*"), _texts),
    Setting("pairing.compute_ports", "a list in the syntax of NCCL_IB_HCA, such as '^mlx5_4,mlx5_5', or null", _optional_text),
    Setting("pairing.topology_file", "the path of an NCCL topology file, or null to look where NCCL does", _optional_text),
    Setting("pairing.links", "a mapping of GPU (index or UUID) to a list of ports, such as {0: [mlx5_0/1]}", _links),
    Setting("pods.socket", "the path of the kubelet's pod-resources socket, or null", _optional_text),
    Setting("pods.interval_seconds", "a number from 1 to 300", _number(1, 300)),
    Setting("jobs.directory", "the path of a directory with a file of job ids per GPU, or null", _optional_text),
    Setting("jobs.scheduler", "the name of the batch scheduler, as it is to stand in the label", _text),
    Setting("jobs.interval_seconds", "a number from 1 to 300", _number(1, 300)),
    Setting("recorder.directory", "the path of a directory for the minutes before a finding, or null", _optional_text),
    Setting("recorder.quota_bytes", "a number from 1000000 to 1000000000000", _number(1e6, 1e12)),
)
_BY_KEY = {s.key: s for s in SETTINGS}


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)) or key in seen:
                problem = "a list or mapping as a key" if isinstance(key, (list, dict)) else f"the key {key!r} twice"
                raise yaml.constructor.ConstructorError(None, None, f"found {problem}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(path: str | Path) -> Any:
    """The content of a YAML file as plain values; ConfigError with file, line and column where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > _LARGEST_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {_LARGEST_FILE_BYTES} bytes: not a configuration file")
    try:
        return yaml.load(data, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _flatten(values: Mapping[Any, Any], above: str, into: dict[str, Any], problems: list[str]) -> None:
    """Nested sections to dotted keys, as far down as SETTINGS goes; unknown keys become problems."""
    for name, value in values.items():
        key = f"{above}{name}"
        if key in _BY_KEY:
            into[key] = value
        elif any(k.startswith(key + ".") for k in _BY_KEY):
            if isinstance(value, Mapping):
                _flatten(value, key + ".", into, problems)
            elif value is not None:
                problems.append(f"{key}: {value!r} is not a section: allowed is a mapping of keys")
        else:
            siblings = sorted({k[len(above) :].split(".")[0] for k in _BY_KEY if k.startswith(above)})
            near = [above + n for n in difflib.get_close_matches(str(name), siblings, 1)]
            near = near or difflib.get_close_matches(key, _BY_KEY, 1)
            hint = f"did you mean {near[0]}?" if near else f"allowed here: {', '.join(siblings)}"
            problems.append(f"{key}: unknown key: {hint}")


def parse(values: Any, origin: str) -> dict[str, Any]:
    """Fields of Config from the content of a YAML file; ConfigError that lists every problem."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{origin}: {values!r:.60} is not a mapping of settings: allowed are the sections "
                          + ", ".join(sorted({s.key.split(".")[0] for s in SETTINGS})))
    flat: dict[str, Any] = {}
    problems: list[str] = []
    _flatten(values, "", flat, problems)
    fields_: dict[str, Any] = {}
    for key, value in flat.items():
        setting = _BY_KEY[key]
        try:
            fields_[setting.field] = setting.parse(value)
        except ValueError:
            problems.append(f"{key}: {value!r:.60} is not allowed: expected {setting.allowed}")
    if problems:
        raise ConfigError(*(f"{origin}: {p}" for p in problems))
    return fields_


def load(path: str | None, flags: Mapping[str, Any]) -> Config:
    """The Config of a run: defaults, then the file, then the flags (fields of Config; None: not given)."""
    given = {name: value for name, value in flags.items() if value is not None}
    unknown = given.keys() - {f.name for f in fields(Config)}
    if unknown:
        raise TypeError(f"no such settings: {sorted(unknown)}")
    config = replace(Config(), **{**(parse(load_yaml(path), str(path)) if path else {}), **given})
    if config.analysis_verdict_window_seconds not in config.analysis_windows_seconds:
        windows = ", ".join(f"{w:g}" for w in config.analysis_windows_seconds)
        raise ConfigError(
            f"{path or 'settings'}: analysis.verdict_window_seconds: {config.analysis_verdict_window_seconds:g} is not "
            f"allowed: expected one of analysis.windows_seconds ({windows})"
        )
    return config
