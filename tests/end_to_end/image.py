"""Builds the Dockerfile with buildah and runs the image with runc, without a registry and without a container engine.

The published base image cannot be had everywhere, so a stand-in is made of Debian's packages (Python and nothing else) and
kept in build/containers; wheels come through pip of this environment. What is checked is what the Dockerfile does, not the
size or content of the published base.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import Requirement

from tests.tools import require

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "build" / "containers"
BASE = "localhost/overlap-base:bookworm"
IMAGE = "localhost/overlap-exporter:test"
BASE_PYTHON = "3.11.2"  # of Debian 12


def run(*command: str | Path, timeout_s: float = 280.0, **options: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout_s, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def buildah(*command: str | Path, timeout_s: float = 280.0) -> str:
    return run(require("buildah"), "--root", KEPT / "storage", "--runroot", KEPT / "run", "--storage-driver", "overlay",
               *command, timeout_s=timeout_s)  # fmt: skip


def debian_mirror() -> str:
    """Where apt of this machine takes its packages from."""
    apt = Path("/etc/apt")
    files = (*apt.glob("sources.list.d/*.sources"), *apt.glob("sources.list"), *apt.glob("sources.list.d/*.list"))
    found = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^]]*\]\s+)?)(\S+)", "\n".join(f.read_text() for f in files), re.MULTILINE)
    assert found, "apt has no sources"
    return found[1]


def base_image() -> str:
    """The stand-in for python:3.x-slim; made once."""
    KEPT.mkdir(parents=True, exist_ok=True)
    images = {name for entry in json.loads(buildah("images", "--json")) for name in entry.get("names") or ()}
    if BASE not in images:
        archive = KEPT / "bookworm.tar"
        try:
            run(require("mmdebstrap"), "--quiet", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
                "bookworm", archive, debian_mirror())  # fmt: skip
            container = buildah("from", "scratch").strip()
            buildah("add", container, archive, "/")
            buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
            buildah("commit", "-q", "--rm", container, BASE)
        finally:
            archive.unlink(missing_ok=True)
    return BASE


def requirements(text: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Every requirement of a file of pip's, with its hashes."""
    for line in re.sub(r"\s*#.*", "", text).replace("\\\n", " ").splitlines():
        name, *hashes = re.split(r"\s+--hash=", line.strip())
        if name:
            yield Requirement(name), hashes


def for_base(text: str) -> str:
    """The requirements as they hold for the Python of the stand-in: pip would hold markers against the Python it runs on."""
    environment = {"python_full_version": BASE_PYTHON, "python_version": BASE_PYTHON.rpartition(".")[0]}
    return "\n".join(
        " ".join([f"{r.name}{r.specifier}", *(f"--hash={h}" for h in hashes)])
        for r, hashes in requirements(text) if r.marker is None or r.marker.evaluate(environment)
    )  # fmt: skip


def build_image(folder: Path, version: str) -> str:
    """The image of the working tree, from pinned and hashed wheels alone."""
    wheels = folder / "wheels"
    for name in ("requirements.txt", "requirements-build.txt"):
        (folder / name).write_text(for_base((ROOT / "deploy" / "image" / name).read_text()))
        run(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:",
            "--python-version", BASE_PYTHON, "--dest", wheels, "-r", folder / name)  # fmt: skip
    buildah("bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "--volume", f"{wheels}:/wheels:ro",
            "--build-arg", f"BASE_IMAGE={base_image()}", "--build-arg", f"VERSION={version}",
            "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels", "-t", IMAGE, ROOT)  # fmt: skip
    return IMAGE


def described(image: str) -> dict[str, object]:
    """The configuration of the image, as Docker has it."""
    found: dict[str, object] = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    return found


@contextmanager
def mounted(image: str) -> Iterator[Path]:
    """The root of a container of the image."""
    container = buildah("from", "--pull-never", image).strip()
    try:
        yield Path(buildah("mount", container).strip())
    finally:
        buildah("umount", container)
        buildah("rm", container)


class Container:
    """A container under runc on the network of this machine: no capability, a read-only root, user 10001 unless told."""

    def __init__(
        self, folder: Path, root: Path, arguments: Sequence[str], mounts: dict[str, Path], config: dict[str, object],
        user: int = 10001,
    ) -> None:  # fmt: skip
        self.name = f"overlap-{folder.name}"
        self._state = folder / "runc"
        self.log = folder / "container.log"
        bundle = folder / "bundle"
        bundle.mkdir(parents=True)
        run(require("runc"), "spec", "--bundle", bundle)
        spec = json.loads((bundle / "config.json").read_text())
        spec["root"] = {"path": str(root), "readonly": True}
        entry, environment = config["Entrypoint"], config["Env"]
        assert isinstance(entry, list)
        process = spec["process"]
        process |= {"args": [*entry, *arguments], "env": environment, "terminal": False, "user": {"uid": user, "gid": user},
                    "rlimits": [], "noNewPrivileges": True, "cwd": "/"}  # fmt: skip
        process["capabilities"] = {kind: [] for kind in process["capabilities"]}
        spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "network"]
        spec["linux"].pop("resources", None)
        spec["mounts"] = [m for m in spec["mounts"] if m["destination"] not in ("/sys", "/sys/fs/cgroup")]
        spec["mounts"] += [
            {"destination": at, "type": "bind", "source": str(source), "options": ["rbind", "ro", "nosuid", "nodev"]}
            for at, source in mounts.items()
        ]
        (bundle / "config.json").write_text(json.dumps(spec))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [require("runc"), "--root", str(self._state), "run", "--bundle", str(bundle), self.name],
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, signal: str) -> None:
        run(require("runc"), "--root", self._state, "kill", self.name, signal)

    def inside(self, *command: str) -> str:
        return run(require("runc"), "--root", self._state, "exec", "--user", "10001:10001", self.name, *command)

    def remove(self) -> None:
        if self.process.poll() is None:
            subprocess.run([require("runc"), "--root", str(self._state), "delete", "--force", self.name], capture_output=True)
            self.process.wait(10)
        shutil.rmtree(self._state, ignore_errors=True)
