"""The command line: parse, call, print. All printing and all exit statuses of depickle are here.

Results go to stdout (JSON lines, or text on a terminal), everything else to stderr. Exit status: 0 done; 1 refused
or mismatched; 2 usage, input or output, or malformed input; the worst of several sources; 130 and 143 after SIGINT
and SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from ._version import __version__
from .errors import Error, Malformed, Mismatch, show

if TYPE_CHECKING:
    from .digest import Stop
    from .options import Options
    from .terminal import Progress

_DONE, _DECLINED, _FAILED = 0, 1, 2
_SIGNALS: Final = {"SIGTERM": 143}


class _Terminated(BaseException):
    """SIGTERM arrived."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        pass
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except _Terminated:
        status = _SIGNALS["SIGTERM"]
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _FAILED
    return status


def _terminate(number: int, frame: object) -> NoReturn:
    raise _Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="depickle",
        description="Turn pickled, pre-quantised PyTorch checkpoints into safetensors without executing anything that they name.",
    )
    parser.add_argument("--version", action="version", version=f"depickle {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _convert_parser(verbs)
    _verify_parser(verbs)
    _inspect_parser(verbs)
    _scan_parser(verbs)
    return parser


def _convert_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("convert", help="convert checkpoints to safetensors, and prove the result")
    parser.set_defaults(run=_convert)
    add = parser.add_argument
    add("sources", nargs="+", metavar="SRC", help="a checkpoint: .pt, .pth, .bin, or a .safetensors to write again")
    add("--out-dir", required=True, metavar="DIR", help="where results go: DIR/[OWNER/NAME/]STEM.safetensors")
    add(
        "--repo",
        metavar="OWNER/NAME",
        help="the repository that the sources come from; part of the path and the provenance",
    )
    add("--revision", metavar="SHA", help="the revision of that repository; part of the provenance")
    add("--sha256", metavar="HEX", help="the digest that the source must have; a mismatch refuses (one SRC)")
    add(
        "--trust-sha256",
        metavar="HEX",
        help="record this digest without hashing the source; the record says so (one SRC)",
    )
    add(
        "--manifest",
        action="store_true",
        help="keep DIR/SHA256SUMS up to date with the results, as sha256sum -c reads it",
    )
    add("--report", metavar="FILE", help="append one JSON line per converted file to FILE")
    add("--drop-tied-copies", action="store_true", help="text encoders: leave out later names of a tied tensor")
    add("--overwrite", action="store_true", help="replace an existing destination that is another file")
    add("--key", metavar="NAME", help="the state dict's name in a nested file")
    add(
        "--keep-unsupported",
        action="store_true",
        help="store classes that torchao's safetensors does not know as they are, marked",
    )
    add(
        "--check-with",
        choices=["torch"],
        metavar="torch",
        help="also compare live objects of the installed torch and torchao",
    )
    add("--dry-run", action="store_true", help="print the plan: which output bytes come from which source bytes")
    add("--json", action="store_true", help="with --dry-run: the plan as JSON")
    add("--pretty", action="store_true", help="records as text for people, also when stdout is no terminal")
    add("--jobs", type=_positive, default=1, metavar="N", help="convert N sources at a time (default 1)")
    add("--quiet", action="store_true", help="no progress and no notes on stderr")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a positive number, not {text!r}")
    return int(text)


def _verify_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("verify", help="prove again that a result is what its source holds")
    parser.set_defaults(run=_verify)
    add = parser.add_argument
    add("src", metavar="SRC", help="the checkpoint")
    add("dst", metavar="DST", help="the safetensors file that was made from it")
    add("--key", metavar="NAME", help="the state dict's name in a nested file")
    add("--quiet", action="store_true", help="no progress on stderr")


def _inspect_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("inspect", help="say what is in a file, without executing anything")
    parser.set_defaults(run=_inspect)
    add = parser.add_argument
    add("file", metavar="FILE", help="a checkpoint or a safetensors file")
    add("--key", metavar="NAME", help="the state dict's name in a nested file")
    add("--json", action="store_true", help="as JSON")


def _scan_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("scan", help="say what a pickle would do if it were executed, and judge it")
    parser.set_defaults(run=_scan)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="a pickle, a torch.save file, or a zip with pickles in it")
    add("--json", action="store_true", help="one JSON line per file")
    add("--sarif", action="store_true", help="one SARIF 2.1.0 log for all files")
    add("--allow-unknown", action="store_true", help="exit with 1 for dangerous files only, not for unknown ones")


# --- verbs ----------------------------------------------------------------------------------------------------------


def _convert(args: argparse.Namespace) -> int:
    from .options import Options, UsageError, check_batch
    from .parallel import run_all
    from .terminal import Progress

    try:
        options = Options(
            args.repo,
            args.revision,
            args.sha256,
            args.trust_sha256,
            args.drop_tied_copies,
            args.overwrite,
            args.key,
            args.keep_unsupported,
            args.check_with,
        )
        if args.json and not args.dry_run:
            raise UsageError("--json goes with --dry-run; records are JSON already")
        check_batch(args.sources, args.out_dir, options, args.report)
        report = open(args.report, "a", encoding="utf-8") if args.report and not args.dry_run else None  # noqa: SIM115 - closed below
    except (UsageError, OSError) as error:
        return _complain(error)
    args.digests, args.lock = {}, Lock()
    one = _dry_run if args.dry_run else _convert_one
    try:
        with Progress(quiet=args.quiet) as progress:
            jobs = [partial(_job, one, src, args, options, report, progress) for src in args.sources]
            worst = max(run_all(jobs, workers=args.jobs))
        if args.manifest and args.digests:
            worst = max(worst, _attempt(lambda: _update_manifest(args)))
        return worst
    finally:
        if report is not None:
            report.close()


def _job(
    one: Callable[..., None],
    src: str,
    args: argparse.Namespace,
    options: Options,
    report: TextIO | None,
    progress: Progress,
    stop: Stop,
) -> int:
    """One source of the batch: its failure does not stop the others."""
    return _attempt(lambda: one(src, args, options, report, progress, stop))


def _convert_one(
    src: str, args: argparse.Namespace, options: Options, report: TextIO | None, progress: Progress, stop: Stop
) -> None:
    from .conversion import convert
    from .terminal import record_text

    fields = {name: getattr(options, name) for name in options.__dataclass_fields__}
    record = convert(src, args.out_dir, **fields, progress=progress.file(os.path.basename(src)), stop=stop)
    args.digests[os.path.relpath(record.dst, args.out_dir)] = record.dst_sha256
    line = json.dumps(record.as_json())
    shown = record_text(record) if args.pretty or sys.stdout.isatty() else line
    with args.lock:  # one line at a time, whatever the number of jobs
        if report is not None:
            report.write(line + "\n")
            report.flush()
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()
    if not args.quiet:
        for warning in record.warnings:
            print(f"depickle: {show(record.src)}: note: {warning}", file=sys.stderr)


def _update_manifest(args: argparse.Namespace) -> None:
    from .manifest import update

    update(args.out_dir, args.digests)


def _dry_run(
    src: str, args: argparse.Namespace, options: Options, report: TextIO | None, progress: Progress, stop: Stop
) -> None:
    from .conversion import plan
    from .opening import open_checkpoint
    from .terminal import plan_text

    with open_checkpoint(src, key=options.key, keep_unsupported=options.keep_unsupported) as checkpoint:
        dst, layout = plan(checkpoint, args.out_dir, options)
        if args.json:
            print(json.dumps({"plan": 1, "sources": [src], "dst": dst, "files": layout.as_json()}))
        else:
            print(plan_text(src, dst, layout))


def _verify(args: argparse.Namespace) -> int:
    from .terminal import Progress
    from .verification import verify

    def act() -> None:
        with Progress(quiet=args.quiet) as progress:
            result = verify(args.src, args.dst, key=args.key, progress=progress.file(os.path.basename(args.dst)))
        print(json.dumps(result.as_json()))

    return _attempt(act)


def _inspect(args: argparse.Namespace) -> int:
    from .inspection import inspect
    from .terminal import inspection_text

    def act() -> None:
        found = inspect(args.file, key=args.key)
        print(json.dumps(found.as_json()) if args.json else inspection_text(found))

    return _attempt(act)


def _scan(args: argparse.Namespace) -> int:
    from .scanning import Scan, as_sarif, scan
    from .terminal import scan_text

    found: list[Scan] = []

    def one(path: str) -> None:
        result = scan(path)
        found.append(result)
        if not args.sarif:
            print(json.dumps(result.as_json()) if args.json else scan_text(result))

    worst = max(_attempt(lambda: one(path)) for path in args.files)  # noqa: B023 - called at once
    if args.sarif:
        print(json.dumps(as_sarif(found, __version__), indent=1))
    declined = {"dangerous"} if args.allow_unknown else {"dangerous", "unknown"}
    return max(worst, _DECLINED if any(result.verdict in declined for result in found) else _DONE)


def _attempt(act: Callable[[], None]) -> int:
    """Run one piece of work; turn every defined failure into a line and a status."""
    from .options import UsageError

    try:
        act()
    except BrokenPipeError:
        raise
    except (Error, UsageError, OSError, MemoryError) as error:
        return _complain(error)
    return _DONE


def _complain(error: BaseException) -> int:
    """One line on stderr, with further findings of a mismatch below it; return the exit status."""
    text = str(error)
    if isinstance(error, OSError):
        text = ": ".join(show(str(part)) for part in (error.filename, error.strerror or error) if part is not None)
    elif isinstance(error, MemoryError):
        text = "out of memory"
    print(f"depickle: {show(text, 2000)}", file=sys.stderr)
    if isinstance(error, Mismatch):
        for finding in error.findings[1:]:
            print(f"  {show(finding, 2000)}", file=sys.stderr)
    return _DECLINED if isinstance(error, Error) and not isinstance(error, Malformed) else _FAILED
