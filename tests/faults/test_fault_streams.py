"""Standard output and the report as they fail: closed, full, not there, not writable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from child import check_failed, convert, digest, ended, finish, no_privileges, run, some, start

import depickle

NAME = "model.safetensors"
VERBS = ("convert", "dry run", "plan", "pretty", "inspect", "inspect json", "verify", "scan", "scan json", "sarif")
CHOSEN = ("convert", "inspect")


@pytest.fixture
def arguments(small, out, tmp_path):
    def of(verb):
        if verb == "verify":
            depickle.convert(small, tmp_path / "made")
        return {
            "convert": ["convert", small, "--out-dir", out],
            "dry run": ["convert", small, "--out-dir", out, "--dry-run"],
            "plan": ["convert", small, "--out-dir", out, "--dry-run", "--json"],
            "pretty": ["convert", small, "--out-dir", out, "--pretty"],
            "inspect": ["inspect", small],
            "inspect json": ["inspect", small, "--json"],
            "verify": ["verify", small, tmp_path / "made" / NAME],
            "scan": ["scan", small],
            "scan json": ["scan", small, "--json"],
            "sarif": ["scan", small, "--sarif"],
        }[verb]

    return of


def check_out(out, small, right):
    """The output is there and right, or not there; never a temporary file."""
    assert os.listdir(out) in ([], [NAME])
    assert not (out / NAME).exists() or digest(out / NAME) == right(small)


@pytest.mark.parametrize("verb", some(VERBS, *CHOSEN))
def test_nobody_reads(small, out, right, arguments, verb):
    """`depickle ... | head -0`."""
    process = start(*arguments(verb), stdout=subprocess.PIPE)
    process.stdout.close()
    with ended(process):
        process.stdout = None
        done = finish(process)
    assert done.status == 2, done
    assert "Traceback" not in done.stderr, done
    assert "Exception ignored" not in done.stderr, done
    check_out(out, small, right)


@pytest.mark.parametrize("verb", some(VERBS, *CHOSEN))
def test_stdout_is_full(small, out, right, arguments, verb):
    with open("/dev/full", "w") as full:
        done = finish(start(*arguments(verb), stdout=full))
    assert done.status == 2, done
    assert len(done.stderr.splitlines()) == 1, done
    assert done.stderr.startswith("depickle: ")
    assert "No space left on device" in done.stderr
    check_out(out, small, right)


@pytest.mark.parametrize("verb", some(VERBS, *CHOSEN))
def test_stdout_is_closed(small, out, right, arguments, verb):
    """`depickle ... >&-`."""
    done = finish(start(*arguments(verb), stdout=None, preexec_fn=lambda: os.close(1)))
    assert done.status in {0, 2}, done
    assert "Traceback" not in done.stderr, done
    check_out(out, small, right)


@pytest.mark.parametrize("verb", some(VERBS, *CHOSEN))
def test_stderr_is_closed(small, out, right, arguments, verb):
    """`depickle ... 2>&-`."""
    done = finish(start(*arguments(verb), stderr=None, preexec_fn=lambda: os.close(2)))
    assert done.status == 0, done
    assert done.stdout
    check_out(out, small, right)


@pytest.mark.parametrize("how", ["closed", "full"])
def test_a_complaint_that_nobody_hears(out, tmp_path, how):
    """The exit status tells all the same."""
    missing = tmp_path / "missing.pt"
    if how == "closed":
        done = convert(missing, out, stderr=None, preexec_fn=lambda: os.close(2))
    else:
        with open("/dev/full", "w") as full:
            done = convert(missing, out, stderr=full)
    assert (done.status, done.stdout) == (2, ""), done


@pytest.mark.parametrize("argument", ["--version", "--help"])
@pytest.mark.parametrize("how", ["closed", "full"])
def test_help_that_nobody_reads(argument, how):
    if how == "closed":
        done = finish(start(argument, stdout=None, preexec_fn=lambda: os.close(1)))
    else:
        with open("/dev/full", "w") as full:
            done = finish(start(argument, stdout=full))
    assert "Traceback" not in done.stderr, done
    assert done.status in {0, 2}, done


def test_stdin_is_closed(small, out):
    assert convert(small, out, stdin=None, preexec_fn=lambda: os.close(0)).status == 0


def test_all_three_are_closed(small, out, right):
    """The files that are opened get the numbers 0, 1 and 2; nothing may be printed into them."""
    done = convert(
        small, out, stdin=None, stdout=None, stderr=None, preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)]
    )
    assert done.status in {0, 2}, done
    assert digest(small) == _SMALL.setdefault(small, digest(small))
    check_out(out, small, right)


_SMALL: dict = {}


def test_the_record_goes_out_as_it_comes(small, out, tmp_path):
    """Each line when its file is done, so that a broken pipe stops the batch early and not at its end."""
    second = tmp_path / "second.pt"
    shutil.copy(small, second)
    process = start("convert", small, second, "--out-dir", out)
    process.stdout.close()
    with ended(process):
        process.stdout = None
        assert finish(process).status == 2
    assert os.listdir(out) == [NAME]


# --- the report -----------------------------------------------------------------------------------------------------


def test_report_on_a_full_disk(small, out, right):
    """The conversion is done and proved by then: the record is still printed, the status tells of the report."""
    done = convert(small, out, "--report", "/dev/full")
    assert done.status == 2, done
    assert len(done.stderr.splitlines()) == 1, done
    assert "No space left on device" in done.stderr
    assert done.stdout == "" or done.record["verified_bit_identical"] is True
    check_out(out, small, right)


def test_report_on_a_disk_that_fills(small, out, right, tmpfs):
    disk = tmpfs(4096)
    report = disk / "report.jsonl"
    report.write_text(json.dumps({"src": "earlier", "pad": "x" * 3900}) + "\n")
    done = convert(small, out, "--report", report)
    assert done.status == 2, done
    assert len(done.stderr.splitlines()) == 1, done
    assert json.loads(report.read_text().splitlines()[0])["src"] == "earlier"
    check_out(out, small, right)


@pytest.mark.parametrize("kind", ["folder", "no folder", "under a file", "link to itself"])
def test_a_report_that_cannot_be_written(small, out, tmp_path, kind):
    """Said before anything is converted."""
    report = {
        "folder": tmp_path,
        "no folder": tmp_path / "missing" / "report",
        "under a file": tmp_path / "file" / "report",
        "link to itself": tmp_path / "loop",
    }[kind]
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    check_failed(convert(small, out, "--report", report), 2, says=report.name, folder=out)


def test_a_report_that_may_not_be_written(small, tmp_path):
    source, out, report = tmp_path / "model.pt", tmp_path / "out", tmp_path / "report"
    shutil.copy(small, source)
    source.chmod(0o644)
    out.mkdir()
    out.chmod(0o777)
    report.touch(mode=0o444)
    done = convert(source, out, "--report", report, preexec_fn=no_privileges)
    check_failed(done, 2, says="Permission denied", folder=out)


def test_the_report_is_appended_to(small, out, tmp_path):
    report = tmp_path / "report.jsonl"
    report.write_text('{"src": "earlier"}\n')
    assert convert(small, out, "--report", report).status == 0
    assert convert(small, out, "--report", report).status == 0
    assert [json.loads(line).get("skipped", False) for line in report.read_text().splitlines()] == [False, False, True]


@pytest.mark.parametrize("which", ["source", "link to the source", "destination"])
def test_the_report_is_neither_source_nor_destination(small, out, tmp_path, which):
    """The source is never written to."""
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    (tmp_path / "link").symlink_to(source)
    report = {"source": source, "link to the source": tmp_path / "link", "destination": out / NAME}[which]
    before = digest(source)
    done = convert(source, out, "--report", report)
    assert digest(source) == before
    check_failed(done, 1, 2, says="report", folder=out)


def test_two_runs_append_to_one_report(small, out, tmp_path):
    report = tmp_path / "report.jsonl"
    processes = []
    for number in range(4):
        source = tmp_path / f"model{number}.pt"
        shutil.copy(small, source)
        processes.append(start("convert", source, "--out-dir", out, "--report", report))
    assert [finish(process).status for process in processes] == [0] * 4
    assert len({json.loads(line)["src"] for line in report.read_text().splitlines()}) == 4


def test_output_in_an_encoding_without_the_names(tmp_path, small, out):
    """An ASCII terminal: text for people is escaped, never a traceback."""
    import assemble as a

    source = tmp_path / "模型.pt"
    source.write_bytes(
        a.torch_file(
            a.checkpoint(
                "unsloth_prequant_transformer_state_dict_v1",
                {"é": "ü"},
                {
                    "層.é": a.tensor(),
                },
            )
        )
    )
    for arguments in (
        ["inspect", source],
        ["scan", source],
        ["convert", source, "--out-dir", out, "--pretty"],
        ["convert", source, "--out-dir", out, "--dry-run"],
        ["verify", source, out / "模型.safetensors"],
    ):
        done = run(*arguments, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
        assert done.status == 0, done
        assert not done.stderr, done
