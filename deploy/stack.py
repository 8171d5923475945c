"""`make stack`: a simulated node in trouble, Prometheus with the shipped rules and Alertmanager, on loopback, until Ctrl-C.

The node is the real daemon, fed from a simulated trace that is played again and again. Every duration of the rules is divided
by FASTER, so that an alert comes within minutes; nothing else of them is changed. With `--speed` the node lives faster still,
and the rules with it. Says when the first alert has arrived at Alertmanager. Nothing is installed or kept: the files lie in a
temporary folder. Grafana is not started, since it is not to be had as a Debian package; deploy/compose has it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deploy.prometheus.build import files

FASTER = 10  # a quarter of an hour becomes a minute and a half
WITHIN_S = 600.0
_TRACE_S = 120
_HOST = "127.0.0.1"
_EXPORTER = (sys.executable, "-m", "exporter")


def _configuration(folder: Path, exporter: int, alertmanager: int, faster: int) -> None:
    """The files of both servers."""
    rules = {name: text for name, text in files(faster).items() if name.startswith("overlap-")}
    for name, text in rules.items():
        (folder / name).write_text(text, encoding="utf-8")
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": sorted(rules),
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{_HOST}:{alertmanager}"]}]}]},
        "scrape_configs": [{
            "job_name": "overlap-exporter",
            "static_configs": [{"targets": [f"{_HOST}:{exporter}"], "labels": {"instance": "node-1"}}],
        }],
    }  # fmt: skip
    routes = {"route": {"receiver": "nobody", "group_by": ["alertname"], "group_wait": "1s"}, "receivers": [{"name": "nobody"}]}
    (folder / "prometheus.yml").write_text(json.dumps(prometheus), encoding="utf-8")  # JSON is YAML
    (folder / "alertmanager.yml").write_text(json.dumps(routes), encoding="utf-8")


@contextmanager
def _running(name: str, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server until the block ends; it gets no Ctrl-C of its own, so that all end in order."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
        if process.poll() is not None:
            raise SystemExit(f"{name} ended: {log.read_text(encoding='utf-8', errors='replace')[-500:]}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(url: str) -> Any:
    """What a URL gives as JSON, True for other text, None for no answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            body = answer.read()
    except OSError:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return True


def _wait(what: Callable[[], Any], processes: Sequence[subprocess.Popen[bytes]], within_s: float, why: str) -> Any:
    until_s = time.monotonic() + within_s
    while not (found := what()):
        if any(p.poll() is not None for p in processes):
            return None  # `_running` tells which, and why
        if time.monotonic() > until_s:
            raise SystemExit(f"{why}: not within {within_s:g} s")
        time.sleep(0.5)
    return found


def main() -> None:
    """Start everything, wait for an alert, print where it all is."""
    parser = argparse.ArgumentParser(prog="python -m deploy.stack", description=main.__doc__)
    parser.add_argument("--port", type=int, default=9777, help="of the exporter (default 9777)")
    parser.add_argument("--prometheus-port", type=int, default=9090, help="(default 9090)")
    parser.add_argument("--alertmanager-port", type=int, default=9093, help="(default 9093)")
    parser.add_argument("--scenario", default="serialized", metavar="NAME",
                        help="what is wrong with the node: one of overlap-exporter simulate --list (default serialized)")
    parser.add_argument("--speed", type=int, default=1, choices=(1, 2), help="of the simulated node (default 1)")
    parser.add_argument("--until-alert", action="store_true", help="end when the first alert has arrived")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers = [shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")]
    if not all(servers):
        raise SystemExit("prometheus and prometheus-alertmanager are needed: sh .ci/tools installs them from Debian or Ubuntu")
    with tempfile.TemporaryDirectory(prefix="overlap-stack-") as kept, ExitStack() as stack:
        folder = Path(kept)
        trace = folder / f"{args.scenario}.jsonl.gz"
        if subprocess.run([*_EXPORTER, "simulate", args.scenario, trace, f"--seconds={_TRACE_S}"], stdout=subprocess.DEVNULL,
                          check=False).returncode:  # fmt: skip
            raise SystemExit(1)  # it has said why
        faster = FASTER * args.speed
        _configuration(folder, args.port, args.alertmanager_port, faster)
        ports = {"exporter": args.port, "alertmanager": args.alertmanager_port, "prometheus": args.prometheus_port}
        urls = {name: f"http://{_HOST}:{port}" for name, port in ports.items()}
        listen = {name: f"--web.listen-address={url.removeprefix('http://')}" for name, url in urls.items()}
        config = {name: f"--config.file={folder / name}.yml" for name in ("alertmanager", "prometheus")}
        commands = {
            "exporter": [*_EXPORTER, "replay", str(trace), "--loop", f"--speed={args.speed}", listen["exporter"]],
            "alertmanager": [str(servers[1]), config["alertmanager"], listen["alertmanager"],
                             f"--storage.path={folder / 'alerts'}", "--cluster.listen-address="],
            "prometheus": [str(servers[0]), config["prometheus"], listen["prometheus"],
                           f"--storage.tsdb.path={folder / 'tsdb'}"],
        }  # fmt: skip
        running = [stack.enter_context(_running(n, command, folder / f"{n}.log")) for n, command in commands.items()]
        for name, url in urls.items():
            _wait(partial(_answers, f"{url}/-/ready"), running, 30, f"{name} is ready")
        for name, url in urls.items():
            print(f"{name:<13} {url}/")
        print(f"A simulated node, {args.scenario.replace('_', ' ')}; rules at {faster} times their speed. Waiting for "
              "an alert, some minutes ...", flush=True)  # fmt: skip
        alerts = _wait(partial(_answers, f"{urls['alertmanager']}/api/v2/alerts"), running, WITHIN_S, "an alert")
        for alert in alerts or ():
            labels, told = alert["labels"], alert["annotations"]
            print(f"{labels.get('severity', '')}: {labels['alertname']}: {told.get('summary', '')}")
        print(f"Arrived: {urls['alertmanager']}/#/alerts and {urls['prometheus']}/alerts. Ctrl-C ends everything.", flush=True)
        while not args.until_alert and all(p.poll() is None for p in running):
            time.sleep(0.5)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
