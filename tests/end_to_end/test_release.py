"""What is released: wheel and sdist are the same bytes each time, hold what they should, and run on every Python found."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from exporter import __version__
from tests.end_to_end.processes import eventually
from tests.tools import require

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(300)]
ROOT = Path(__file__).parent.parent.parent
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")


def pythons() -> dict[str, str]:
    """Version -> interpreter, of those that the project supports: on PATH, or below pyenv's root, whose shims may be dead."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in (f"3.{minor}" for minor in range(10, 14)):
        candidates = [shutil.which(f"python{version}"), *map(str, roots.glob(f"{version}.*/bin/python{version}"))]
        ask = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        for path in filter(None, candidates):
            if subprocess.run([path, *ask], capture_output=True, text=True).stdout.strip() == version:
                found[version] = path
                break
    return found


PYTHONS = pythons()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that nothing changes in it between two builds."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "source", symlinks=True, ignore=NOT_SOURCE))


def built(tree: Path, out: Path, *what: str) -> dict[str, Path]:
    """Suffix -> file."""
    done = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *what, str(tree)],
                          capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.suffix: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def released(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return built(tree, tmp_path_factory.mktemp("dist"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_second_build_gives_the_same_bytes(tree: Path, released: dict[str, Path], tmp_path: Path) -> None:
    for path in tree.rglob("*.py"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    again = built(tree, tmp_path)
    assert {s: (p.name, digest(p)) for s, p in again.items()} == {s: (p.name, digest(p)) for s, p in released.items()}


def test_the_sdist_builds_the_very_wheel(released: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(released[".gz"]) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    again = built(tmp_path / f"overlap_exporter-{__version__}", tmp_path / "dist", "--wheel")
    assert digest(again[".whl"]) == digest(released[".whl"])


def test_the_wheel_holds_the_program_the_page_and_nothing_else(released: dict[str, Path]) -> None:
    assert released[".whl"].name == f"overlap_exporter-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(released[".whl"]) as wheel:
        names = wheel.namelist()
    assert {n.split("/")[0] for n in names} == {"exporter", f"overlap_exporter-{__version__}.dist-info"}
    assert {"exporter/page/index.html", "exporter/py.typed"} <= set(names)
    assert not [n for n in names if n.endswith((".pyc", ".so"))]
    with tarfile.open(released[".gz"]) as archive:
        inside = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert {"Dockerfile", "deploy/systemd/overlap-exporter.service", "deploy/slurm/prolog.sh", "LICENSE"} <= inside


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_the_wheel_runs_on_every_python_that_is_here(version: str, released: dict[str, Path], tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    for command in (["venv", "--python", PYTHONS[version], str(venv)],
                    ["pip", "install", "--python", str(venv / "bin" / "python"), str(released[".whl"])]):  # fmt: skip
        subprocess.run([*uv, *command], check=True, cwd=tmp_path)
    lives(venv / "bin" / "overlap-exporter", tmp_path)


def lives(command: Path, folder: Path) -> None:
    """An installed command simulates, analyzes, serves and stops, with no warning."""
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    environment.pop("PYTHONPATH", None)

    def out(*arguments: str) -> str:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert out("--version") == f"overlap-exporter {__version__}\n"
    out("simulate", "serialized", "trace.jsonl.gz", "--seconds", "30")
    assert '"state": "serialized"' in out("analyze", "trace.jsonl.gz", "--window", "15", "--json")
    log = folder / "demo.log"
    with log.open("wb") as written:
        process = subprocess.Popen([command, "demo", "--web.listen-address", "127.0.0.1:0"], stdout=written, stderr=written,
                                   cwd=folder, env=environment)  # fmt: skip
    try:

        def address() -> str | None:
            assert process.poll() is None, log.read_text()
            line = next((line for line in log.read_text().splitlines() if " is at http" in line), None)
            return line and line.split(" is at ")[1].split(",")[0].rstrip("/")

        url = str(eventually(address, 20, "it says its address"))

        def metrics() -> str | None:
            try:
                with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                    return str(answer.read().decode())
            except OSError:
                return None

        (told,) = re.findall(r"^overlap_build_info\{(.*)\} 1.0$", eventually(metrics, 20, "it can be scraped"), re.MULTILINE)
        assert f'version="{__version__}"' in told
        assert 'mode="demo"' in told
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, log.read_text()


@pytest.fixture(scope="module")
def pipx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pipx in an environment of its own."""
    tools = tmp_path_factory.mktemp("pipx") / "tools"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    for command in (["venv", str(tools)], ["pip", "install", "--python", str(tools / "bin" / "python"), "pipx"]):
        subprocess.run([*uv, *command], check=True, cwd=tools.parent)
    return tools / "bin" / "pipx"


def committed(tree: Path, folder: Path) -> str:
    """The address of a bare Git repository whose one commit is the tree."""
    bare = folder / "overlap-exporter.git"
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.invalid", f"--git-dir={bare}", f"--work-tree={tree}"]
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(bare)], check=True)
    for command in (["add", "--all"], ["commit", "--quiet", "--message=All there is"]):
        subprocess.run([*git, *command], check=True, cwd=tree)
    return f"git+file://{bare}"


@pytest.mark.parametrize("way", ["wheel", "git"])
def test_pipx_installs_it_into_a_clean_environment(
    way: str, tree: Path, released: dict[str, Path], pipx: Path, tmp_path: Path
) -> None:
    if way == "git":
        require("git")
    what = str(released[".whl"]) if way == "wheel" else committed(tree, tmp_path)
    environment = {**os.environ, "PIPX_HOME": str(tmp_path / "opt"), "PIPX_BIN_DIR": str(tmp_path / "bin"),
                   "PIPX_MAN_DIR": str(tmp_path / "man"), "PIPX_SHARED_LIBS": str(pipx.parent.parent / "shared")}  # fmt: skip
    done = subprocess.run([pipx, "install", what], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = subprocess.run([tmp_path / "bin" / "overlap-exporter", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"overlap-exporter {__version__}\n"
    page = next((tmp_path / "opt").rglob("site-packages/exporter/page/index.html"))
    assert page.read_bytes() == (ROOT / "exporter" / "page" / "index.html").read_bytes(), "what is no Python comes along"
