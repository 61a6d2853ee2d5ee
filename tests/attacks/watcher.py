"""The process in which attacks run: reads commands from standard input, answers each with one line of JSON.

It imports all of depickle and converts one harmless file, so that whatever the library loads late is loaded; then it
sets an audit hook and forks for every command. The fork has limits (memory, file size, time), its standard streams in
files, its own empty working folder and temporary folder, and reports what it did. Standard library only; it knows
nothing of the attacks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pkgutil
import resource
import signal
import sys
import time
import types
from pathlib import Path

LIMIT_SECONDS = 30.0  # of the clock; of the processor, what the case allows and two more
LIMIT_MEMORY = 2 << 30
LIMIT_FILE = 256 << 20
LARGE = 64 << 20  # a file over this is known by its size, not by its digest
OPTIONAL = (
    "depickle.torch",
    "depickle.numpy",
    "depickle.hub",
    "depickle.__main__",
)  # the extras, one module or more each
PREFIX = os.path.dirname(os.__file__)

# Audit events that mean that something was loaded, run, started or reached. "open" and the file events count outside
# the output.
ALWAYS = {
    "import", "exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill",
    "os.putenv", "os.unsetenv", "pty.spawn", "pickle.find_class", "marshal.loads", "marshal.load", "code.__new__",
    "function.__new__", "builtins.input", "builtins.breakpoint", "setopencodehook", "sys.settrace", "sys.setprofile",
}  # fmt: skip
FAMILIES = ("socket.", "ctypes.", "subprocess.", "webbrowser.", "urllib.", "http.", "ftplib.", "imaplib.", "smtplib.",
            "poplib.", "sqlite3.", "shutil.", "winreg.", "syslog.", "mmap.", "pdb.", "ensurepip.", "cpython.run_")  # fmt: skip
FILES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate",
         "os.setxattr", "os.utime", "os.chdir", "open"}  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
events: list[str] = []
watching: list[str] = []  # empty, or the folder in which writing is allowed


def hook(event: str, args: tuple[object, ...]) -> None:
    if not watching or not (event in ALWAYS or event in FILES or event.startswith(FAMILIES)):
        return
    if event in FILES and not _writes_elsewhere(event, args):
        return
    if event in {"import", "exec", "compile", "marshal.loads", "mmap.__new__"} and _innocent(event, args):
        return
    events.append(f"{event} {args!r}"[:300])


def _writes_elsewhere(event: str, args: tuple[object, ...]) -> bool:
    if event == "open" and not _is_write(args):
        return False
    paths = args[:2] if event in {"os.rename", "os.link", "os.symlink"} else args[:1]
    names = [os.fsdecode(path) for path in paths if isinstance(path, (str, bytes, os.PathLike))]
    allowed = watching[0]
    return any(
        not os.path.abspath(os.path.join(allowed, name)).startswith(allowed) for name in names if name != os.devnull
    )


def _is_write(args: tuple[object, ...]) -> bool:
    mode, flags = args[1], args[2] if len(args) > 2 else 0
    return bool(isinstance(mode, str) and set(mode) & set("wax+")) or bool(isinstance(flags, int) and flags & WRITES)


def _innocent(event: str, args: tuple[object, ...]) -> bool:
    """Code of the library or of its own standard library modules that is loaded late, and reading through a map."""
    if event == "import":
        return str(args[0]).split(".")[0] in {"depickle", "rich", "encodings", "unicodedata", "stringprep"}
    if event == "exec":
        code = args[0]
        return isinstance(code, types.CodeType) and code.co_name == "<module>" and _ours(code.co_filename)
    return event != "compile"


def _ours(filename: str) -> bool:
    return os.sep + "depickle" + os.sep in filename or filename.startswith(("<frozen", PREFIX + os.sep + "encodings"))


def load() -> types.CodeType | None:
    """Import every module of the package but its extras; return the code of `python -m depickle`."""
    import depickle

    for info in pkgutil.walk_packages(depickle.__path__, "depickle."):
        if not info.name.startswith(OPTIONAL):
            importlib.import_module(info.name)
    spec = importlib.util.find_spec("depickle.__main__")
    return None if spec is None else spec.loader.get_code("depickle.__main__")


def act(argv: list[str], main: types.CodeType | None) -> tuple[int | None, str, str]:
    """Run one command: the function `depickle.convert`, or the command line."""
    if argv[0] == "api":
        return api(argv[1], argv[2])
    if main is None:
        return 99, "NoCommandLine", "there is no depickle.__main__"
    sys.argv = ["depickle", *argv]
    try:
        exec(main, {"__name__": "__main__", "__package__": "depickle", "__builtins__": __builtins__})
    except SystemExit as stop:
        return (0 if stop.code is None else stop.code if isinstance(stop.code, int) else 1), "", ""
    return 0, "", ""


def api(source: str, folder: str) -> tuple[int | None, str, str]:
    import depickle

    try:
        depickle.convert(source, folder)
    except Exception as error:  # noqa: BLE001 - which class it is, is what is asked
        return None, type(error).__name__, str(error)
    return 0, "", ""


def fork(sandbox: str, argv: list[str], main: types.CodeType | None, seconds: float) -> dict[str, object]:
    """Run one command in a forked process and report it."""
    report = sandbox + ".report"
    before = _resident()
    pid = os.fork()
    if pid == 0:
        try:
            _child(sandbox, argv, main, report, int(seconds) + 2)
        finally:
            os._exit(70)
    status, usage = _wait(pid)
    text = Path(report).read_text() if os.path.exists(report) else ""
    done = json.loads(text) if text else {}
    run = {"status": None, "error": "", "message": "", "events": [], "stdout": "", "stderr": "", **done}
    if not done:
        run["message"] = run["error"] = f"the process was ended: {status}"
        run["status"] = -1
    for name in ("stdout", "stderr"):
        run[name] = Path(f"{sandbox}.{name}").read_text(errors="backslashreplace")
    run |= {"argv": argv, "seconds": usage.ru_utime + usage.ru_stime, "mebibytes": usage.ru_maxrss / 1024 - before}
    Path(report).unlink(missing_ok=True)
    return run


def _child(sandbox: str, argv: list[str], main: types.CodeType | None, report: str, seconds: int) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{sandbox}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(sandbox + "/cwd")
    os.environ["TMPDIR"] = sandbox + "/tmp"
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_MEMORY, LIMIT_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_FILE, LIMIT_FILE))
    target = os.open(report, os.O_WRONLY | os.O_CREAT)
    events.clear()
    watching.append(sandbox + "/out")
    try:
        status, error, message = act(argv, main)
    except BaseException as escaped:  # noqa: BLE001 - whatever gets out is reported
        status, error, message = 70, f"escaped {type(escaped).__name__}", str(escaped)
    watching.clear()
    sys.stdout.flush()
    sys.stderr.flush()
    made = {"status": status, "error": error, "message": message, "events": events}
    os.write(target, json.dumps(made).encode())
    os._exit(0)


def _wait(pid: int) -> tuple[str, resource.struct_rusage]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return f"by {signal.Signals(status).name}" if status in set(signal.Signals) else f"status {status}", usage
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            return f"killed after {LIMIT_SECONDS} s", usage
        time.sleep(0.001)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def tree(folder: Path) -> dict[str, str]:
    """Every path below a folder with the digest of what it is; symlinks are not followed."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(root, name)
            if path.is_symlink():
                found[str(path.relative_to(folder))] = f"-> {os.readlink(path)}"
            elif path.is_file() and path.stat().st_size > LARGE:
                found[str(path.relative_to(folder))] = f"{path.stat().st_size} bytes"
            elif path.is_file():
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif not path.is_dir():
                found[str(path.relative_to(folder))] = "special"
    return found


def keep(sandbox: str, run: dict[str, object], number: int) -> None:
    """Put a conversion's output aside, so that the next command finds the folder as the first did."""
    if run["status"] == 0 and run["argv"][0] in {"api", "convert"}:
        run["kept"] = f"{sandbox}.out{number}"
        os.rename(sandbox + "/out", run["kept"])
        os.mkdir(sandbox + "/out")


def main() -> None:
    program = load()
    with Path(os.devnull).open("w") as nowhere:
        warm_up(sys.argv[1], program, nowhere)
    sys.addaudithook(hook)
    for line in sys.stdin:
        job = json.loads(line)
        run = fork(job["sandbox"], job["command"], program, job["seconds"])
        found = tree(Path(job["sandbox"]))
        keep(job["sandbox"], run, job["number"])
        print(json.dumps({"run": run, "found": found}), flush=True)


def warm_up(control: str, program: types.CodeType | None, nowhere: object) -> None:
    """Convert, look at and fail on a file, so that what is loaded late is loaded."""
    streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = nowhere
    try:
        for argv in (
            ["convert", control, "--out-dir", control + ".out"],
            ["inspect", control],
            ["scan", control],
            ["inspect", sys.executable],
        ):
            act(argv, program)
        act(["api", control, control + ".api"], program)
    finally:
        sys.stdout, sys.stderr = streams


if __name__ == "__main__":
    main()
