"""The command line: parse flags, call one function per command, turn errors into exit codes.

Usage errors exit 2, everything else that fails exits 1 with one line on standard error and no traceback. A command
imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from exporter import __version__
from exporter.model import OneLineError

_EPILOG = """\
first steps:
  overlap-exporter demo                     a simulated 8-GPU node; open http://localhost:9777/
  overlap-exporter serve                    this node's GPUs and NICs; scrape http://HOST:9777/metrics
  overlap-exporter record node.jsonl.gz --seconds 120 && overlap-exporter analyze node.jsonl.gz
"""


class _Parser(argparse.ArgumentParser):
    """One line instead of the whole usage: what, where, what is allowed."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True, slots=True)
class _Flag:
    names: tuple[str, ...]
    help: str
    field: str | None = None  # field of Config that it sets
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None
    default: Any = None
    action: str | None = None
    optional: bool = False  # of a name without dashes


def _number(text: str, expected: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected {expected}")
    return value


def _positive(text: str) -> float:
    return _number(text, "a number above 0", lambda value: value > 0)


def _not_negative(text: str) -> float:
    return _number(text, "a number of 0 or more", lambda value: value >= 0)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected a whole number of 0 or more")
    return int(text)


def _requirements(text: str) -> tuple[str, ...]:
    from exporter.config import REQUIRABLE

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not set(names) <= set(REQUIRABLE):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected a list out of {', '.join(REQUIRABLE)}")
    return names


_LOGGING = (
    _Flag(("--log.level",), "only log messages of this severity or above", "log_level",
          choices=("debug", "info", "warn", "error")),
    _Flag(("--log.format",), "format of log messages", "log_format", choices=("logfmt", "json")),
)
_FILE = (_Flag(("--config.file",), "YAML file with settings; a flag beats the file", None, metavar="FILE"),)
_WEB = (
    _Flag(("--web.listen-address",), "address of /metrics and the page: ':port', 'host:port' or '[::1]:port' (default ':9777')",
          "web_listen_address", metavar="ADDRESS"),
    _Flag(("--web.config.file",), "web configuration file for TLS and basic authentication (exporter-toolkit's format)",
          "web_config_file", metavar="FILE"),
)
_MACHINE = (
    _Flag(("--path.sysfs",), "where the node's /sys is mounted (default /sys)", "path_sysfs", metavar="DIR"),
    _Flag(("--path.procfs",), "where the node's /proc is mounted (default /proc)", "path_procfs", metavar="DIR"),
    _Flag(("--nvml.library",), "path of libnvidia-ml.so.1 (default: found by the loader)", "nvml_library", metavar="FILE"),
)
_REQUIRE = (
    _Flag(("--require",), "make it an error when one of these is absent: gpu, rdma or gpu,rdma", "require", type=_requirements,
          metavar="LIST"),
)
_DAEMON = (*_FILE, *_WEB, *_LOGGING)


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    help: str
    run: Callable[[argparse.Namespace], None]
    flags: tuple[_Flag, ...]


def _settings(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The Config of a run, and the flags alone (for a reload)."""
    from exporter.config import load

    values = {name[len("set_") :]: value for name, value in vars(args).items() if name.startswith("set_")}
    return load(getattr(args, "config_file", None), values), values


def _serve(args: argparse.Namespace) -> None:
    from exporter.app import serve

    config, flags = _settings(args)
    serve(config, args.config_file, flags)


def _demo(args: argparse.Namespace) -> None:
    from exporter.app import demo

    config, flags = _settings(args)
    demo(config, args.config_file, flags, args.speed, args.seed)


def _replay(args: argparse.Namespace) -> None:
    from exporter.app import replay

    config, flags = _settings(args)
    replay(config, args.config_file, flags, args.trace, args.speed, args.loop)


def _record(args: argparse.Namespace) -> None:
    from exporter.app import record

    config, _ = _settings(args)
    record(config, args.out, args.seconds, args.force)


def _analyze(args: argparse.Namespace) -> None:
    from exporter.offline import analyze, as_json, print_findings, print_table, progress
    from exporter.report import Judged, check_target, write_report
    from exporter.trend import Trend
    from exporter.wording import language_of

    if args.html:
        check_target(args.html, args.force)
    windows = tuple(sorted(set(args.window or (15.0, 60.0, 300.0))))
    language = args.language or language_of(os.environ)
    trend = Trend()
    with progress(args.trace) as show:

        def watch(session: Any, reader: Any) -> None:
            trend.add(session.verdicts.at_s, session.verdicts.analyses)
            show(session, reader)

        results, session, cut = analyze(args.trace, windows, args.at or (), args.every, watch)
    if args.json:
        print(as_json(args.trace, results, cut, session.verdicts))
    else:
        print_table(args.trace, results, session, language)
        print_findings(session.verdicts, language)
    if args.html:
        size = write_report(args.html, Judged(args.trace, session, results, trend, max(r.at_s for r in results), cut), language)
        print(f"{args.html}: {size / 1e3:.0f} kB, opens in any browser", file=sys.stderr)
    if cut:
        print(f"overlap-exporter: {args.trace}: {cut}", file=sys.stderr)


def _simulate(args: argparse.Namespace) -> None:
    from exporter.offline import print_scenarios, simulate_to_file

    if args.list:
        print_scenarios()
        return
    if args.scenario is None or args.out is None:
        raise argparse.ArgumentTypeError("give SCENARIO and OUT.jsonl.gz, or --list")
    print(simulate_to_file(args.scenario, args.out, args.seconds, args.seed, args.force))


def _doctor(args: argparse.Namespace) -> None:
    from exporter.config import Config, ConfigError
    from exporter.doctor import DEFAULT_S, doctor

    problems: tuple[str, ...] = ()
    try:
        config, _ = _settings(args)
    except ConfigError as error:
        flags = {name[len("set_") :]: value for name, value in vars(args).items() if name.startswith("set_")}
        given = {name: value for name, value in flags.items() if value is not None}
        config, problems = replace(Config(), **given), error.problems
    if not doctor(config, problems, args.seconds or DEFAULT_S, args.json):
        raise SystemExit(1)


def _top(args: argparse.Namespace) -> None:
    from exporter.clock import SystemClock
    from exporter.top import DEFAULT_URL, top
    from exporter.wording import language_of

    top(args.url or DEFAULT_URL, SystemClock(), args.language or language_of(os.environ))


def _check_config(args: argparse.Namespace) -> None:
    from exporter.config import ConfigError, load

    try:
        load(args.file, {})
    except ConfigError as error:
        raise OneLineError("\noverlap-exporter: ".join(error.problems)) from None
    print(f"{args.file}: good")


_COMMANDS = (
    _Command("serve", "the daemon: read this node's GPUs and NICs, serve /metrics and the live page", _serve,
             (*_DAEMON, *_MACHINE, *_REQUIRE)),
    _Command("demo", "the same daemon on a simulated 8-GPU node whose job walks through the scenarios", _demo,
             (*_DAEMON,
              _Flag(("--speed",), "how many times faster than life (default 1)", type=_positive, metavar="X", default=1.0),
              _Flag(("--seed",), "seed of the simulation (default 0)", type=_seed, metavar="N", default=0))),
    _Command("record", "sample this node into a trace file", _record,
             (_Flag(("out",), "the trace to write, usually NAME.jsonl.gz", metavar="OUT.jsonl.gz"),
              _Flag(("--seconds",), "stop after this long (default: until interrupted)", type=_positive, metavar="N"),
              _Flag(("--force",), "write over a file that exists", action="store_true"),
              *_FILE, *_LOGGING, *_MACHINE, *_REQUIRE)),
    _Command("replay", "the daemon, fed from a trace", _replay,
             (_Flag(("trace",), "the trace to play", metavar="TRACE"),
              _Flag(("--speed",), "how many times faster than life (default 1)", type=_positive, metavar="X", default=1.0),
              _Flag(("--loop",), "start again at the end", action="store_true"),
              *_DAEMON)),
    _Command("analyze", "judge a trace offline, by the very analysis that the daemon runs", _analyze,
             (_Flag(("trace",), "the trace to judge", metavar="TRACE"),
              _Flag(("--window",), "length of a window in seconds; may be given again (default 15, 60 and 300)", type=_positive,
                    metavar="S", action="append"),
              _Flag(("--at",), "judge at this second of the trace; may be given again (default: its end)", type=_not_negative,
                    metavar="S", action="append"),
              _Flag(("--every",), "judge each S seconds", type=_positive, metavar="S"),
              _Flag(("--json",), "print JSON instead of a table, with all words in every language", action="store_true"),
              _Flag(("--html",), "write a report with plots into one self-contained file", metavar="OUT.html"),
              _Flag(("--force",), "write over a file that exists", action="store_true"),
              _Flag(("--language",), "language of findings, advice and report (default: that of LC_ALL or LANG)",
                    choices=("en", "zh")))),
    _Command("simulate", "write a labelled trace of a simulated job", _simulate,
             (_Flag(("scenario",), "name of the scenario, see --list", metavar="SCENARIO"),
              _Flag(("out",), "the trace to write, usually NAME.jsonl.gz", metavar="OUT.jsonl.gz"),
              _Flag(("--seconds",), "length of the trace (default: what the scenario needs)", type=_positive, metavar="N"),
              _Flag(("--seed",), "seed of the simulation (default 0)", type=_seed, metavar="N", default=0),
              _Flag(("--list",), "list the scenarios", action="store_true"),
              _Flag(("--force",), "write over a file that exists", action="store_true"))),
    _Command("top", "the live view in a terminal, of the local daemon or of another", _top,
             (_Flag(("url",), "where the daemon is, with USER:PASSWORD@ where it asks for them (default http://localhost:9777/)",
                    metavar="URL", optional=True),
              _Flag(("--language",), "language of the view (default: that of LC_ALL or LANG)", choices=("en", "zh")))),
    _Command("doctor", "look at this node: what works and what does not; exit status 1 if something needed is missing",
             _doctor,
             (_Flag(("--json",), "print JSON instead of tables", action="store_true"),
              _Flag(("--seconds",), "watch the devices for this long (default 10)", type=_positive, metavar="N"),
              *_FILE, *_WEB, *_MACHINE, *_REQUIRE)),
    _Command("check-config", "validate a configuration file", _check_config,
             (_Flag(("file",), "the file to check", metavar="FILE"),)),
)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="overlap-exporter",
        description="Shows Prometheus whether communication hides behind compute on this node, why not, and what to change.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"overlap-exporter {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for command in _COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help[0].upper() + command.help[1:] + ".",
                                  allow_abbrev=False)
        sub.set_defaults(run=command.run, prog=sub.prog)
        for flag in command.flags:
            _add(sub, flag)
    return parser


def _add(parser: argparse.ArgumentParser, flag: _Flag) -> None:
    options: dict[str, Any] = {"help": flag.help}
    if flag.action != "store_true":
        options |= {"type": flag.type, "metavar": flag.metavar, "default": flag.default}
        if flag.choices:
            options |= {"choices": flag.choices}
            options.pop("metavar")
    if flag.action:
        options["action"] = flag.action
    if flag.names[0].startswith("--"):
        name = flag.names[0].lstrip("-").replace(".", "_").replace("-", "_")
        options["dest"] = f"set_{flag.field}" if flag.field else name
    elif parser.prog.endswith(" simulate") or flag.optional:  # simulate --list needs no scenario
        options["nargs"] = "?"
    parser.add_argument(*flag.names, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()  # here, where a failure still has a handler
    except argparse.ArgumentTypeError as error:
        print(f"{args.prog}: {error} (see {args.prog} --help)", file=sys.stderr)
        return 2
    except OneLineError as error:
        print(f"overlap-exporter: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone: `analyze ... | head`
        _drop_output()
        return 1
    except OSError as error:  # of output: files of ours have messages of their own
        _drop_output()
        print(f"overlap-exporter: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _drop_output() -> None:
    """No more output, also of what is still in the buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
