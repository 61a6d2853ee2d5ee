"""The command line: parse, call, print. All exit statuses of depickle are decided here and in `console`.

Results go to stdout (JSON lines, or text on a terminal), everything else to stderr. Exit status: 0 done; 1 refused
or mismatched; 2 usage, input or output, or malformed input; the worst of several sources; 130 and 143 after SIGINT
and SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from ._version import __version__
from .console import DECLINED, DONE, FAILED, Unheard, attempt, complain, flush, open_streams, say, tell
from .errors import show
from .targets import TARGETS

if TYPE_CHECKING:
    from .digest import Stop

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        pass
    try:
        open_streams()
        try:
            args = _parser().parse_args(argv)
        except SystemExit:
            flush()
            raise
        status: int = args.run(args)
        flush()
    except _Interrupted as error:
        status = 128 + int(error.args[0])
    except Unheard as error:
        status = FAILED if isinstance(error.__cause__, BrokenPipeError) else complain(error.__cause__)
    return status


def _interrupt(number: int, frame: object) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # what begins now is the cleaning up
    raise _Interrupted(number)


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
    _mirror_parser(verbs)
    return parser


_CONVERT_EXAMPLES: Final = """\
examples:
  depickle convert model.pt --out-dir out --repo owner/name
  depickle convert model.pt --out-dir out --target comfyui
  depickle convert llama/ --out-dir converted --max-shard-size 5GB
  depickle convert pipeline/ --out-dir converted --dry-run
"""


def _convert_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "convert",
        help="convert checkpoints to safetensors, and prove the result",
        epilog=_CONVERT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_convert)
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SRC",
        help="a checkpoint: .pt, .pth, .bin, a .safetensors to write again, or a model's folder",
    )
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
    _output_options(parser)


def _output_options(parser: argparse.ArgumentParser) -> None:
    """What the results look like, and how they are told of."""
    add = parser.add_argument
    add("--max-shard-size", metavar="SIZE", help="split what is larger, as in 5GB, and write an index")
    add("--target", choices=list(TARGETS), help="whom the result is for; by default what the source's format says")
    add("--key-prefix", metavar="PREFIX", help="with --target comfyui: put PREFIX before every name")
    add("--rename", metavar="FILE", help="with --target comfyui: a table of new names, and of weights to put together")
    add(
        "--allow-requantize",
        action="store_true",
        help="with --target comfyui: round float8 with a scale a row again, which is not exact",
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
    add("src", metavar="SRC", help="the checkpoint, or a model's folder")
    add("dst", metavar="DST", help="the safetensors file that was made from it, the index of several, or the folder")
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


def _mirror_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("mirror", help="look into the local mirror that UNSLOTH_DIFFUSION_PREQUANT_MIRROR names")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser = verbs.add_parser("resolve", help="print the file that a studio would open, or say why there is none")
    parser.set_defaults(run=_mirror_resolve)
    parser.add_argument("repo", metavar="OWNER/NAME", help="the repository")
    parser.add_argument("file", metavar="FILE", help="the file in it, such as model.pt or folder/model.pt")
    parser = verbs.add_parser("list", help="show every pickle and converted file of the roots")
    parser.set_defaults(run=_mirror_list)
    parser.add_argument("--json", action="store_true", help="one JSON line per file")
    parser = verbs.add_parser("verify", help="prove every pair of a pickle and a converted file")
    parser.set_defaults(run=_mirror_verify)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


# --- verbs ----------------------------------------------------------------------------------------------------------


def _convert(args: argparse.Namespace) -> int:
    from .batch import Batch, Report
    from .options import Options, UsageError, check_batch, parse_size
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
            args.target,
            parse_size(args.max_shard_size) if args.max_shard_size else None,
            key_prefix=args.key_prefix,
            rename=args.rename,
            allow_requantize=args.allow_requantize,
        )
        if args.json and not args.dry_run:
            raise UsageError("--json goes with --dry-run; records are JSON already")
        check_batch(args.sources, args.out_dir, options, args.report)
        report = Report(args.report) if args.report and not args.dry_run else None
    except (UsageError, OSError) as error:
        return complain(error)
    try:
        with Progress(quiet=args.quiet) as progress:
            flags = {"as_json": args.json, "pretty": args.pretty, "quiet": args.quiet}
            batch = Batch(args.out_dir, options, report, progress, **flags)
            one = batch.plan if args.dry_run else batch.convert
            jobs = [partial(_job, one, src) for src in args.sources]
            worst = max(run_all(jobs, workers=args.jobs))
        if args.manifest and batch.digests:
            worst = max(worst, attempt(lambda: _update_manifest(args.out_dir, batch.digests)))
        return worst
    finally:
        if report is not None:
            report.close()


def _job(one: Callable[[str, Stop], None], src: str, stop: Stop) -> int:
    """One source of the batch: its failure does not stop the others."""
    return attempt(lambda: one(src, stop))


def _update_manifest(out_dir: str, digests: dict[str, str]) -> None:
    from .manifest import update

    update(out_dir, digests)


def _verify(args: argparse.Namespace) -> int:
    from .terminal import Progress
    from .verification import verify

    def act() -> None:
        with Progress(quiet=args.quiet) as progress:
            report = progress.file(os.path.basename(args.dst))
            if os.path.isdir(args.src):
                from .options import UsageError
                from .repository_check import verify_folder

                if args.key is not None:
                    raise UsageError(f"--key goes with a file, and {args.src} is a folder")
                say(json.dumps(verify_folder(args.src, args.dst, progress=report).as_json()))
            else:
                say(json.dumps(verify(args.src, args.dst, key=args.key, progress=report).as_json()))

    return attempt(act)


def _inspect(args: argparse.Namespace) -> int:
    from .inspection import inspect
    from .terminal import inspection_text

    def act() -> None:
        found = inspect(args.file, key=args.key)
        say(json.dumps(found.as_json()) if args.json else inspection_text(found))

    return attempt(act)


def _scan(args: argparse.Namespace) -> int:
    from .scanning import Scan, as_sarif, scan
    from .terminal import scan_text

    found: list[Scan] = []

    def one(path: str) -> None:
        result = scan(path)
        found.append(result)
        if not args.sarif:
            say(json.dumps(result.as_json()) if args.json else scan_text(result))

    worst = max(attempt(lambda: one(path)) for path in args.files)  # noqa: B023 - called at once
    if args.sarif:
        say(json.dumps(as_sarif(found, __version__), indent=1))
    declined = {"dangerous"} if args.allow_unknown else {"dangerous", "unknown"}
    return max(worst, DECLINED if any(result.verdict in declined for result in found) else DONE)


def _mirror_resolve(args: argparse.Namespace) -> int:
    from .mirror import VARIABLE, resolve

    found = resolve(args.repo, args.file)
    if found.path is not None:
        for note in found.notes:
            tell(f"depickle: note: {show(note, 400)}")
        say(found.path)
        return DONE
    tell(f"depickle: {show(args.repo)}: no root has {show(args.file)}")
    for one in found.tries:
        tell(f"  {show(one.path, 1000)}: {show(str(one.problem), 400)}")
    if not found.tries:
        tell(f"  {VARIABLE} names no root")
    return DECLINED


def _mirror_list(args: argparse.Namespace) -> int:
    from .mirror import entries
    from .terminal import entry_text

    def act() -> None:
        for entry in entries():
            say(json.dumps(entry.as_json()) if args.json else entry_text(entry))

    return attempt(act)


def _mirror_verify(args: argparse.Namespace) -> int:
    from .mirror import Entry, entries, verify
    from .terminal import Progress

    worst = DONE
    with Progress(quiet=args.quiet) as progress:

        def one(pair: Entry) -> None:
            say(json.dumps(verify(pair, progress=progress.file(pair.file)).as_json()))

        def every() -> None:
            nonlocal worst
            for pair in entries():
                if pair.pickle is not None and pair.converted is not None:
                    worst = max(worst, attempt(partial(one, pair)))

        return max(attempt(every), worst)
