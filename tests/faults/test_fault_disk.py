"""Disks that are full, slow, broken, read-only or strange: status 2, one line, nothing left; or the right file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess

import pytest
from child import Hold, check_failed, convert, digest, ended, file_size_limit, finish, no_privileges, some, start

import depickle

NAME = "model.safetensors"
MIB = 1024 * 1024
FULL = {"ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EIO": errno.EIO, "EFBIG": errno.EFBIG, "ESTALE": errno.ESTALE}


# --- full -----------------------------------------------------------------------------------------------------------


def test_free_space_is_checked_up_front(big, tmpfs):
    disk = tmpfs(8 * MIB)
    done = convert(big, disk)
    check_failed(done, 2, says="are free", folder=disk)


def test_no_free_space_nothing_is_written(big, out, shim, tmp_path):
    log = tmp_path / "log"
    done = convert(big, out / "new" / "folder", env=shim(FREE=100, LOG=log))
    check_failed(done, 2, says="are free", folder=out)
    assert "write" not in [line.split()[0] for line in log.read_text().splitlines() if str(out) in line]


def test_a_disk_that_fills_while_it_is_written(big, tmpfs, shim, tmp_path):
    """A real ENOSPC: somebody else takes the space after it was checked."""
    disk, hold = tmpfs(80 * MIB), Hold.at(tmp_path / "hold")
    env = shim(WRITE=f"match=.part,after={8 * MIB},{hold.rule}")
    with ended(start("convert", big, "--out-dir", disk, env=env)) as process:
        hold.wait()
        with (disk / "other").open("wb") as other:
            os.posix_fallocate(other.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
        hold.release()
        done = finish(process)
    (disk / "other").unlink()
    check_failed(done, 2, says="No space left on device", folder=disk)


def test_file_size_limit(big, out):
    done = convert(big, out, preexec_fn=file_size_limit(MIB))
    check_failed(done, 2, says="File too large", folder=out)


@pytest.mark.parametrize("name", some(FULL, "EDQUOT", "EIO"))
@pytest.mark.parametrize("after", [0, 20000])
def test_writing_fails(small, out, shim, name, after):
    done = convert(small, out, env=shim(WRITE=f"match=.part,after={after},errno={FULL[name]}"))
    check_failed(done, 2, says=os.strerror(FULL[name]), folder=out)


def test_a_failed_write_names_the_file(small, out, shim):
    done = convert(small, out, env=shim(WRITE=f"match=.part,errno={errno.ENOSPC}"))
    check_failed(done, 2, says=NAME, folder=out)


def test_folders_that_were_made_go_again(small, out, shim):
    env = shim(WRITE=f"match=.part,errno={errno.ENOSPC}")
    check_failed(convert(small, out / "a" / "b", "--repo", "owner/name", env=env), 2, folder=out)


def test_the_old_file_survives(small, out, shim):
    depickle.convert(small, out, revision="0" * 40)
    before = digest(out / NAME)
    done = convert(small, out, "--overwrite", env=shim(WRITE=f"match=.part,after=6000,errno={errno.ENOSPC}"))
    assert done.status == 2, done
    assert (os.listdir(out), digest(out / NAME)) == ([NAME], before)


@pytest.mark.parametrize("call", ["FSYNC", "LINK", "RENAME"])
def test_the_last_steps_fail(small, out, shim, call):
    """Bytes that the disk did not take, a name that it does not give."""
    more = ["--overwrite"] if call == "RENAME" else []
    done = convert(small, out, *more, env=shim(**{call: f"match={out},errno={errno.EIO}"}))
    check_failed(done, 2, says="Input/output error", folder=out)


def test_the_folder_cannot_be_synced(small, out, right, shim):
    """The file has its name by then; it may stay, since it is complete, but a success it is not."""
    done = convert(small, out, env=shim(FSYNC=f"after=1,match={out},errno={errno.EIO}"))
    check_failed(done, 2, says="Input/output error")
    assert os.listdir(out) in ([], [NAME])
    assert not (out / NAME).exists() or digest(out / NAME) == right(small)


@pytest.mark.parametrize("number", some([errno.EINVAL, errno.ENOTSUP], errno.EINVAL))
def test_a_disk_that_does_not_sync_folders(small, out, right, shim, number):
    assert convert(small, out, env=shim(FSYNC=f"after=1,match={out},errno={number}")).status == 0
    assert digest(out / NAME) == right(small)


# --- strange --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", some([errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK], errno.EPERM))
def test_a_disk_without_hard_links(small, out, right, shim, number):
    assert convert(small, out, env=shim(LINK=f"errno={number}")).status == 0
    assert os.listdir(out) == [NAME]
    assert digest(out / NAME) == right(small)


@pytest.mark.parametrize("number", some([errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS], errno.ENOLCK))
def test_a_disk_without_locks(small, out, right, shim, number):
    litter = out / ".depickle-0123456789abcdef.part"
    litter.touch()
    assert convert(small, out, env=shim(FLOCK=f"errno={number}")).status == 0
    assert digest(out / NAME) == right(small)
    assert sorted(os.listdir(out)) == [litter.name, NAME]  # it may be somebody's who lives


def test_short_reads_and_writes(small, out, right, shim):
    assert convert(small, out, env=shim(READ="match=model,short=777", WRITE="match=.part,short=333")).status == 0
    assert digest(out / NAME) == right(small)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", some([0.0, 0.02, 0.5, 1.5], 0.0, 1.5))
def test_a_source_that_cannot_be_read(big, out, shim, part):
    """EIO at the first byte, in the pickle, in the first pass over the data, in the second."""
    after = int(part * big.stat().st_size)
    done = convert(big, out, env=shim(READ=f"match=model.pt,after={after},errno={errno.EIO}"))
    check_failed(done, 2, says="Input/output error", folder=out)


@pytest.mark.parametrize("after", [0, 10_000])
def test_an_output_that_cannot_be_read_back(small, out, shim, after):
    done = convert(small, out, env=shim(READ=f"match=.part,after={after},errno={errno.EIO}"))
    check_failed(done, 2, says="Input/output error", folder=out)


@pytest.mark.parametrize("verb", some(["convert", "inspect", "verify", "scan"], "convert", "scan"))
def test_a_failed_read_names_the_file(small, out, shim, verb):
    if verb == "verify":
        depickle.convert(small, out)
    more = {"convert": ["--out-dir", out], "verify": [out / NAME]}.get(verb, [])
    done = finish(start(verb, small, *more, env=shim(READ=f"match=model.pt,errno={errno.EIO}")))
    check_failed(done, 2, says="model.pt")


# --- read-only ------------------------------------------------------------------------------------------------------


def test_a_folder_that_may_not_be_written(small, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o555)
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    source.chmod(0o644)
    check_failed(convert(source, out, preexec_fn=no_privileges), 2, says="Permission denied", folder=out)
    check_failed(convert(source, out / "deeper", preexec_fn=no_privileges), 2, says="Permission denied", folder=out)


def test_a_file_system_that_is_read_only(small, tmpfs):
    disk = tmpfs(MIB)
    made = subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"cannot remount read-only: {made.stderr.strip()}")
    check_failed(convert(small, disk), 2, says="Read-only file system", folder=disk)
    check_failed(convert(small, disk / "deeper"), 2, says="Read-only file system", folder=disk)


def test_a_folder_in_which_others_files_cannot_be_listed(small, tmp_path, right):
    """A drop box (write, no read): sweeping is no reason to fail."""
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o733)
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    source.chmod(0o644)
    assert convert(source, out, preexec_fn=no_privileges).status in {0, 2}
    out.chmod(0o755)
    assert os.listdir(out) in ([], [NAME])


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", some([0o000, 0o022, 0o027, 0o077], 0o000, 0o027))
def test_the_umask_decides(small, out, umask):
    assert convert(small, out / "made", umask=umask).status == 0
    assert (out / "made" / NAME).stat().st_mode & 0o7777 == 0o666 & ~umask
    assert (out / "made").stat().st_mode & 0o7777 == 0o777 & ~umask


def test_a_umask_that_forbids_the_owner_to_read(small, tmp_path):
    """Nobody can be helped who wants that; it must not end in a half-made file."""
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    source.chmod(0o644)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    done = convert(source, out, umask=0o777, preexec_fn=no_privileges)
    assert done.status in {0, 2}, done
    assert os.listdir(out) == ([NAME] if done.status == 0 else [])


def test_the_source_is_never_written(small, out):
    before = (digest(small), small.stat().st_mtime_ns, small.stat().st_ctime_ns, small.stat().st_mode)
    assert convert(small, out).status == 0
    assert (digest(small), small.stat().st_mtime_ns, small.stat().st_ctime_ns, small.stat().st_mode) == before


def test_a_source_that_may_only_be_read(small, tmp_path):
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    source.chmod(0o444)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    assert convert(source, out, preexec_fn=no_privileges).status == 0
