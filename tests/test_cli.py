"""The command line from outside: whatever is wrong, one clear line on standard error, the right exit status, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import __version__
from exporter.cli import _COMMANDS
from exporter.trace import read_trace
from tests.machines import antiphase, bare

FIXTURES = Path(__file__).parent / "fixtures" / "traces"
TRACE = FIXTURES / "seed_serialized_a.jsonl.gz"
PROGRAM = (sys.executable, "-m", "exporter")
USAGE, FAILED = 2, 1


def run(*arguments: str | Path, timeout_s: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s,
        env={**os.environ, "COLUMNS": "100", **environment},
    )  # fmt: skip


def complaint(code: int, *arguments: str | Path, **environment: str) -> str:
    """The one line that a command fails with."""
    done = run(*arguments, **environment)
    assert done.returncode == code, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("overlap-exporter")
    assert "Traceback" not in done.stderr
    return lines[0]


# ---- usage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "named"), [
    ("", "COMMAND"),
    ("--nonsense", "COMMAND"),
    ("srve", "'srve'"),
    ("serve --nonsense", "--nonsense"),
    ("serve --web.listen :1", "--web.listen"),  # a flag is written out
    ("serve extra", "extra"),
    ("serve --config.file", "--config.file"),
    ("serve --require cpu", "expected a list out of gpu, rdma"),
    ("serve --log.level loud", "'loud'"),
    ("demo --speed 0", "'0' is not allowed: expected a number above 0"),
    ("demo --speed fast", "'fast' is not allowed: expected a number above 0"),
    ("demo --seed -1", "'-1' is not allowed: expected a whole number of 0 or more"),
    ("demo --seed 1.5", "'1.5'"),
    ("record", "OUT.jsonl.gz"),
    ("record out.jsonl.gz --seconds -5", "'-5'"),
    ("record out.jsonl.gz --seconds inf", "'inf'"),
    ("replay", "TRACE"),
    ("replay trace.jsonl.gz --speed nan", "'nan'"),
    ("analyze", "TRACE"),
    ("analyze trace.jsonl.gz --window wide", "'wide'"),
    ("analyze trace.jsonl.gz --window 0", "'0'"),
    ("analyze trace.jsonl.gz --at -1", "'-1' is not allowed: expected a number of 0 or more"),
    ("analyze trace.jsonl.gz --every 0", "'0'"),
    ("simulate", "--list"),
    ("simulate serialized", "OUT.jsonl.gz"),
    ("simulate serialized out.jsonl.gz --seconds -1", "'-1'"),
    ("simulate serialized out.jsonl.gz --seconds 1e400", "'1e400'"),
    ("simulate serialized out.jsonl.gz --seed x", "'x'"),
    ("check-config", "FILE"),
])  # fmt: skip
def test_a_mistake_in_the_call_exits_2_and_names_itself(words: str, named: str, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    line = complaint(USAGE, *shlex.split(words), PYTHONPATH=str(Path(__file__).parent.parent))
    assert named in line
    assert "--help" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda c: c.name)
def test_help_of_a_command_lists_every_flag(command) -> None:
    done = run(command.name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.replace(",", " ").replace("[", " ").replace("]", " ").split()
    for flag in command.flags:
        shown = flag.names if flag.names[0].startswith("-") else (flag.metavar,)
        assert set(shown) <= set(words), flag
        assert " ".join(flag.help.split()[:3]) in " ".join(done.stdout.split()), flag


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert {command.name for command in _COMMANDS} <= set(done.stdout.split())


def test_the_version_is_that_of_the_package() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"overlap-exporter {__version__}\n")


# ---- configuration -------------------------------------------------------------------------------------------------------

BAD_FILES = {
    "not yaml": ("sampling: [1\n", "not valid YAML"),
    "not a mapping": ("- 1\n", "is not a mapping of settings"),
    "wrong type": ("sampling: {gpu_hertz: fast}\n", "gpu_hertz: 'fast' is not allowed: expected a number from 1 to 50"),
    "out of range": ("sampling: {gpu_hertz: 1000}\n", "sampling.gpu_hertz: 1000 is not allowed"),
    "unknown key": ("sampling: {gpu_herz: 10}\n", "sampling.gpu_herz: unknown key: did you mean sampling.gpu_hertz?"),
    "unknown section": ("samplin: {gpu_hertz: 10}\n", "did you mean sampling?"),
    "not a section": ("sampling: 10\n", "sampling: 10 is not a section"),
    "a key twice": ("log: {level: info, level: debug}\n", "the key 'level' twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_bad_file_is_one_line_with_file_key_value_and_what_is_allowed(command: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "overlap.yml"
    text, expected = BAD_FILES[name]
    file.write_text(text)
    line = complaint(FAILED, command, *(["--config.file", file] if command == "serve" else [file]))
    assert str(file) in line
    assert expected in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.yml'}: cannot be read: No such file" in complaint(FAILED, "check-config", tmp_path / "none.yml")
    assert f"{tmp_path}: cannot be read: Is a directory" in complaint(FAILED, "serve", "--config.file", tmp_path)


def test_check_config_lists_every_problem_and_serve_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "overlap.yml"
    file.write_text("sampling: {gpu_hertz: 0, network_hertz: many}\nlog: {levle: info}\n")
    done = run("check-config", file)
    assert (done.returncode, done.stdout) == (FAILED, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"overlap-exporter: {file}: ") for line in lines)
    for key in ("sampling.gpu_hertz", "sampling.network_hertz", "log.levle"):
        assert sum(key in line for line in lines) == 1
    assert complaint(FAILED, "serve", "--config.file", file).endswith("(and 2 more)")


def test_a_good_file_is_good(tmp_path: Path) -> None:
    file = tmp_path / "overlap.yml"
    file.write_text("sampling: {gpu_hertz: 20}\nlog: {level: warn}\n")
    done = run("check-config", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: good\n", "")


# ---- the daemon -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["9777x", ":99999", "[::1:9", ""])
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    line = complaint(FAILED, "demo", "--log.level", "error", "--web.listen-address", address)
    assert "--web.listen-address" in line
    assert "expected" in line


def test_a_port_in_use_is_one_line_also_for_a_replay() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = complaint(FAILED, "replay", TRACE, "--log.level", "error", "--web.listen-address", f"127.0.0.1:{port}")
    assert line.startswith(f"overlap-exporter: port {port} is taken")


def test_a_web_configuration_that_is_missing_is_one_line(tmp_path: Path) -> None:
    line = complaint(FAILED, "demo", "--log.level", "error", "--web.listen-address", "127.0.0.1:0", "--web.config.file",
                     tmp_path / "web.yml")
    assert str(tmp_path / "web.yml") in line


# ---- traces ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are no traces, each in its own way."""
    folder = tmp_path_factory.mktemp("broken")
    header = json.loads(gzip.decompress(TRACE.read_bytes()).split(b"\n")[0])
    newer = json.dumps({**header, "version": 2}).encode() + b"\n"
    contents = {
        "text": b"not gzip at all\n", "empty": b"", "prose": gzip.compress(b"once upon a time\n"),
        "headless": gzip.compress(b'[0.1, "nvml", [1.0]]\n'), "newer": gzip.compress(newer),
        "other": gzip.compress(b'{"format": "something-else", "version": 1}\n'),
        "silent": gzip.compress(json.dumps(header).encode() + b"\n"),
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    return folder


NO_TRACES = {
    "text": "not gzip, so not a trace", "empty": "empty, not a trace", "prose": "not a trace, its first line is not JSON",
    "headless": "its first line is not a header", "newer": "version", "other": "format", "missing": "No such file",
    "folder": "Is a directory",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TRACES)
@pytest.mark.parametrize("command", ["analyze", "replay"])
def test_what_is_no_trace_is_refused_in_one_line(command: str, name: str, broken: Path) -> None:
    more = ["--web.listen-address", "127.0.0.1:0", "--log.level", "error"] if command == "replay" else []
    line = complaint(FAILED, command, broken / name, *more)
    assert line.startswith(f"overlap-exporter: {broken / name}: ")
    assert NO_TRACES[name] in line


def test_a_newer_version_says_which_is_read(broken: Path) -> None:
    line = complaint(FAILED, "analyze", broken / "newer")
    assert "2" in line
    assert "1" in line


def test_a_trace_without_readings_or_too_short_is_one_line(broken: Path) -> None:
    assert "holds no readings" in complaint(FAILED, "analyze", broken / "silent")
    assert "--at 9999: the trace ends at" in complaint(FAILED, "analyze", TRACE, "--at", "9999")


def test_a_trace_that_is_cut_off_is_used_up_to_there_and_said_to_be(tmp_path: Path) -> None:
    whole, cut = json.loads(run("analyze", TRACE, "--json").stdout), tmp_path / "cut.jsonl.gz"
    data = TRACE.read_bytes()
    cut.write_bytes(data[: 2 * len(data) // 3])
    done = run("analyze", cut, "--json")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"overlap-exporter: {cut}: cut off after line ")
    document = json.loads(done.stdout)
    assert document["cut"] in line
    assert 0.4 < document["results"][0]["at_s"] / whole["results"][0]["at_s"] < 0.9
    assert document["results"][0]["state"] == whole["results"][0]["state"] == "serialized"
    assert document["results"][0]["exposed"] is not None


def test_every_asked_instant_and_window_has_a_row() -> None:
    done = run("analyze", TRACE, "--json", "--at", "30", "--at", "40.5", "--window", "20", "--window", "10")
    rows = [(r["gpu"], r["at_s"], r["window_s"]) for r in json.loads(done.stdout)["results"]]
    gpus = list(dict.fromkeys(gpu for gpu, _, _ in rows))
    assert sorted(rows) == sorted((g, t, w) for g in gpus for t in (30.0, 40.5) for w in (10.0, 20.0))


# ---- output ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["--every 1 --json", "--json", ""])
def test_a_pipe_that_closes_early_is_no_error_to_speak_of(arguments: str) -> None:
    words = " ".join(map(shlex.quote, (*PROGRAM, "analyze", str(TRACE)))) + f" {arguments} | head -c 10"
    done = subprocess.run(["bash", "-c", words + "; exit ${PIPESTATUS[0]}"], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert len(done.stdout) == 10
    assert done.returncode in (0, 1)


def test_output_onto_a_full_disk_is_one_line() -> None:
    for flags in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*PROGRAM, "analyze", str(TRACE), *flags], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == FAILED
        assert done.stderr == "overlap-exporter: output: No space left on device\n"


# ---- simulate -------------------------------------------------------------------------------------------------------------


def test_an_unknown_scenario_names_those_there_are(tmp_path: Path) -> None:
    line = complaint(FAILED, "simulate", "serialised", tmp_path / "out.jsonl.gz")
    assert "'serialised'" in line
    assert "perfect_overlap, serialized" in line
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_is_not_written_over_a_file_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    out.write_text("precious")
    assert "exists already" in complaint(FAILED, "simulate", "idle", out, "--seconds", "2")
    assert out.read_text() == "precious"
    done = run("simulate", "idle", out, "--seconds", "2", "--force")
    assert done.returncode == 0
    assert read_trace(out).inventory.truth["scenario"] == "idle"


@pytest.mark.parametrize(("out", "expected"), [
    ("/dev/full", "/dev/full: cannot write: No space left on device"),
    ("/no/such/folder/out.jsonl.gz", "/no/such/folder/out.jsonl.gz: cannot write: No such file or directory"),
])  # fmt: skip
def test_a_simulation_that_cannot_be_written_is_one_line(out: str, expected: str) -> None:
    assert complaint(FAILED, "simulate", "serialized", out, "--seconds", "20") == f"overlap-exporter: {expected}"


def test_the_list_of_scenarios_needs_no_file() -> None:
    done = run("simulate", "--list")
    assert done.returncode == 0
    assert {"serialized", "perfect_overlap", "two_jobs"} <= {line.split()[0] for line in done.stdout.splitlines()}


# ---- record ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Arguments and environment of a machine with one GPU and one port."""
    with antiphase(1).running(tmp_path_factory.mktemp("machine")) as there:
        yield [*there.arguments, "--log.level", "error"], there.environment


def test_a_recording_is_a_trace_of_the_time_asked_for(machine: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    arguments, environment = machine
    out = tmp_path / "out.jsonl.gz"
    done = run("record", out, "--seconds", "1.5", *arguments, **environment)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{out}: ")
    assert "1 GPUs, 1 RDMA ports" in line
    reader = read_trace(out)
    times = [event.t_s for event in reader if hasattr(event, "t_s")]
    assert reader.cut is None
    assert 1.0 < max(times) - min(times) < 2.5


def test_a_recording_that_is_interrupted_is_whole(machine: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    arguments, environment = machine
    out = tmp_path / "out.jsonl.gz"
    process = subprocess.Popen(
        [*PROGRAM, "record", str(out), *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    until_s = time.monotonic() + 20
    while not (out.exists() and out.stat().st_size > 2000) and time.monotonic() < until_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 0, said
    reader = read_trace(out)
    assert sum(1 for _ in reader) > 20
    assert reader.cut is None


def test_a_recording_is_not_made_over_a_file_unless_forced(
    machine: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    arguments, environment = machine
    out = tmp_path / "out.jsonl.gz"
    out.write_text("precious")
    line = complaint(FAILED, "record", out, "--seconds", "1", *arguments, **environment)
    assert line == f"overlap-exporter: {out}: exists already and is not overwritten; --force does"
    assert out.read_text() == "precious"
    assert run("record", out, "--seconds", "0.5", "--force", *arguments, **environment).returncode == 0
    assert read_trace(out).inventory.of_kind("gpu")


def test_a_recording_onto_a_full_disk_is_one_line(machine: tuple[list[str], dict[str, str]]) -> None:
    arguments, environment = machine
    line = complaint(FAILED, "record", "/dev/full", "--seconds", "3", *arguments, **environment)
    assert line == "overlap-exporter: /dev/full: cannot write: No space left on device"


def test_where_there_is_nothing_to_record_nothing_is_left_behind_or_lost(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    (tmp_path / "sys").mkdir()
    (tmp_path / "proc").mkdir()
    nothing = ["--path.sysfs", tmp_path / "sys", "--path.procfs", tmp_path / "proc", "--nvml.library", tmp_path / "none.so"]
    line = complaint(FAILED, "record", out, "--seconds", "1", "--log.level", "error", *nothing)
    assert "nothing to record" in line
    assert not out.exists()
    out.write_text("precious")
    complaint(FAILED, "record", out, "--force", "--seconds", "1", "--log.level", "error", *nothing)
    assert out.read_text() == "precious"


def test_a_recording_that_lacks_what_it_requires_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    with bare().running(tmp_path / "machine") as there:
        arguments = ["--require", "gpu", "--log.level", "error", *there.arguments]
        line = complaint(FAILED, "record", out, *arguments, **there.environment)
    assert line == "overlap-exporter: --require gpu: no gpu was found (library_not_found)"
    assert not out.exists()
