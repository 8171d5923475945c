"""Renders the manifests with the real kubectl (kustomize) and helm, and finds things in what came out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tests.tools import forgo

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "overlap-exporter"
KUSTOMIZE = ROOT / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(p.name for p in (KUSTOMIZE / "overlays").iterdir()))

Object = dict[str, Any]


@lru_cache
def tool(name: str) -> str:
    """Path of helm or kubectl: in build/bin, where .ci/helm puts both once; a missing one skips, or fails where CI=true."""
    kept = ROOT / "build" / "bin" / name
    if not kept.exists() and shutil.which("helm") and shutil.which("kubectl"):
        return str(shutil.which(name))
    if not kept.exists():
        done = subprocess.run([sys.executable, ROOT / ".ci" / "helm", kept.parent], capture_output=True, text=True)
        if done.returncode:
            forgo(f"{name} cannot be had: {done.stderr[-300:]}")
    return str(kept)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool(command[0]), *command[1:]], capture_output=True, text=True, timeout=60)


def objects(text: str) -> list[Object]:
    return [o for o in yaml.safe_load_all(text) if o]


@lru_cache
def kustomized(overlay: str) -> tuple[Object, ...]:
    """The objects of an overlay, or of "base"."""
    done = run("kubectl", "kustomize", str(KUSTOMIZE / ("base" if overlay == "base" else f"overlays/{overlay}")))
    assert done.returncode == 0, done.stderr
    return tuple(objects(done.stdout))


def templated(values: Mapping[str, str] | None = None, release: str = "overlap-exporter") -> subprocess.CompletedProcess[str]:
    """helm template with values (key -> value)."""
    given = [part for key, value in (values or {}).items() for part in ("--set", f"{key}={value}")]
    return run("helm", "template", release, str(CHART), "--namespace", "overlap-exporter", *given)


def helmed(values: Mapping[str, str]) -> tuple[Object, ...]:
    """The objects of the chart."""
    return _helmed(tuple(values.items()))


@lru_cache
def _helmed(values: tuple[tuple[str, str], ...]) -> tuple[Object, ...]:
    done = templated({"image.repository": "registry.example.com/overlap-exporter", **dict(values)})
    assert done.returncode == 0, done.stderr
    return tuple(objects(done.stdout))


def one(found: tuple[Object, ...], kind: str) -> Object:
    (match,) = (o for o in found if o["kind"] == kind)
    return match


def kinds(found: tuple[Object, ...]) -> list[str]:
    return sorted(o["kind"] for o in found)


def pod_spec(found: tuple[Object, ...]) -> Object:
    spec: Object = one(found, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def exporter(found: tuple[Object, ...]) -> Object:
    (container,) = pod_spec(found)["containers"]
    return dict(container)
