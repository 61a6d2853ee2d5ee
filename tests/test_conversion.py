"""The verb `convert` and what SPEC sections 2 to 6 promise of it, through the command line, on small files built by
hand and a few real ones."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import assemble as a
import depickle
import outside
import truth
from depickle.cli import main

FIXTURES = Path(__file__).parent / "data" / "fixtures"
INT8 = FIXTURES / "0.17.0" / "int8dyn_default.wrapped.pt"
NF4 = FIXTURES / "0.17.0" / "nf4.wrapped.pt"
V1 = "unsloth_prequant_transformer_state_dict_v1"
V2 = "unsloth_prequant_transformer_state_dict_v2"
V3 = "unsloth_prequant_transformer_state_dict_v3"
ENCODER = "unsloth_prequant_text_encoder_state_dict_v1"
CONVROT = "unsloth_prequant_text_encoder_int8_convrot_v1"
ROTATION = {
    "activation_rotation": {"kind": "convrot_hadamard_v1"},
    "activation_rotation_group": 4,
    "activation_rotation_fqns": ["m"],
}
POLICY = {"nvfp4_policy": {"default": "int8"}}
W = a.tensor("0", "FloatStorage", 4)


class Run:
    """What a command line printed, and its status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        """The one record of a run that went well."""
        assert (self.status, len(self.records)) == (0, 1), self.err
        return self.records[0]

    @property
    def file(self) -> outside.File:
        """The output of the one source."""
        return outside.read(Path(self.record["dst"]))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Run]:
    """Run a command line in this process; `convert` gets an --out-dir of its own."""

    def run(*args: object) -> Run:
        words = [str(arg) for arg in args]
        if words[0] == "convert" and "--out-dir" not in words:
            words += ["--out-dir", str(tmp_path / "out")]
        try:
            status = main(words)
        except SystemExit as stop:
            status = int(str(stop.code))
        got = capsys.readouterr()
        return Run(status, got.out, got.err)

    return run


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a torch zip around a pickle, or around the items of a state dict."""

    def write(
        content: bytes | Mapping[str, Any],
        storages: Mapping[str, bytes] | None = None,
        name: str = "m.pt",
        **options: Any,
    ) -> Path:
        pickle = content if isinstance(content, bytes) else a.state_dict(content)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(a.torch_file(pickle, storages, **options))
        return path

    return write


def digest(path: Path | str) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def files(folder: Path) -> list[str]:
    """Every file and folder below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def at_run(cli: Callable[..., Run], *args: object) -> Any:
    """The metadata of a conversion's output."""
    return cli("convert", *args).file.metadata


# --- where results go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("m.pt", "m"),
        ("m.pth", "m"),
        ("m.bin", "m"),
        ("m.PT", "m"),
        ("m.v1.Pth", "m.v1"),
        ("m", "m"),
        ("m.ckpt", "m.ckpt"),
        ("m.pt.bak", "m.pt.bak"),
        ("ä b.pt", "ä b"),
        (".pt", ".pt"),
    ],
)
def test_destination_is_the_name_less_a_known_suffix(
    name: str, stem: str, cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path
) -> None:
    """STEM is the file name less .pt, .pth or .bin in any case; any other name keeps its whole name."""
    record = cli("convert", save({"w": W}, name=name)).record
    assert record["dst"] == str(tmp_path / "out" / f"{stem}.safetensors")
    assert files(tmp_path / "out") == [f"{stem}.safetensors"]


def test_safetensors_source_loses_its_suffix_too(
    cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path
) -> None:
    """A .safetensors source becomes STEM.safetensors elsewhere."""
    first = cli("convert", save({"a.w": W})).record["dst"]
    again = cli("convert", first, "--out-dir", tmp_path / "again").record
    assert again["dst"] == str(tmp_path / "again" / "m.safetensors")


def test_repo_makes_folders_and_provenance(cli: Callable[..., Run], tmp_path: Path) -> None:
    """--repo puts the file under OWNER/NAME, and repository and revision into the provenance."""
    run = cli("convert", INT8, "--repo", "acme/tiny", "--revision", "abc123")
    assert run.record["dst"] == str(tmp_path / "out/acme/tiny/int8dyn_default.wrapped.safetensors")
    source = json.loads(run.file.metadata["unsloth_source"])
    assert source == {
        "file": INT8.name,
        "sha256": digest(INT8),
        "bytes": INT8.stat().st_size,
        "repo": "acme/tiny",
        "revision": "abc123",
        "converter": f"depickle {depickle.__version__}",
    }


@pytest.mark.parametrize(
    "repo", ["acme", "acme/", "/tiny", "a/b/c", "../x", "x/..", "./x", "x/.", "a\\b/c", "a/b\\c", "/", ""]
)
def test_other_repos_are_usage_errors(repo: str, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A part that is empty, a dot or two, or holds a separator or a backslash is a usage error, before anything is
    made."""
    run = cli("convert", INT8, f"--repo={repo}")
    assert (run.status, run.out, files(tmp_path)) == (2, "", [])
    assert "--repo" in run.err


def test_output_has_the_permissions_of_the_umask(cli: Callable[..., Run]) -> None:
    """A new file gets 0666 less the umask."""
    before = os.umask(0o027)
    try:
        path = cli("convert", INT8).record["dst"]
    finally:
        os.umask(before)
    assert Path(path).stat().st_mode & 0o777 == 0o640


# --- refused before anything is read --------------------------------------------------------------------------------


def test_two_sources_with_one_destination(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Two sources with one destination are a usage error that names both, even if neither exists."""
    run = cli("convert", tmp_path / "a/m.pt", tmp_path / "b/m.pth")
    assert (run.status, run.out, files(tmp_path)) == (2, "", [])
    assert "a/m.pt" in run.err
    assert "b/m.pth" in run.err


@pytest.mark.parametrize("kind", ["itself", "symlink to it", "hard link to it"])
def test_destination_that_is_its_own_source(
    kind: str, cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path
) -> None:
    """A destination that is its own source, or a link to it, is a usage error, and the source is untouched."""
    made = Path(cli("convert", save({"a.w": W})).record["dst"])
    source = made
    if kind != "itself":
        source = tmp_path / "elsewhere" / made.name
        source.parent.mkdir()
        made.rename(source)
        (made.symlink_to if kind.startswith("sym") else made.hardlink_to)(source)
    before = source.read_bytes()
    run = cli("convert", source, "--overwrite")
    assert (run.status, run.out) == (2, "")
    assert source.read_bytes() == before


def test_sha256_with_several_sources(cli: Callable[..., Run], tmp_path: Path) -> None:
    """--sha256 and --trust-sha256 go with one source."""
    for option in ("--sha256", "--trust-sha256"):
        run = cli("convert", tmp_path / "a.pt", tmp_path / "b.pt", option, "0" * 64)
        assert (run.status, run.out, files(tmp_path)) == (2, "", [])


@pytest.mark.parametrize("value", ["", "0" * 63, "0" * 65, "g" * 64, "0x" + "0" * 62])
def test_sha256_that_is_none(value: str, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A digest is 64 hexadecimal digits."""
    assert cli("convert", INT8, f"--sha256={value}").status == 2
    assert files(tmp_path) == []


def test_contradicting_options_are_usage_errors(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Both digests at once, --json without --dry-run, no source, no folder, an unknown option."""
    known = digest(INT8)
    for args in (
        (INT8, "--sha256", known, "--trust-sha256", known),
        (INT8, "--json"),
        (),
        (INT8, "--nonsense"),
        (INT8, "--check-with", "numpy"),
    ):
        assert cli("convert", *args).status == 2, args
    assert main_status(["convert", str(INT8)]) == 2
    assert files(tmp_path) == []


def main_status(words: list[str]) -> int:
    """The status of a command line that argparse may refuse."""
    try:
        return main(words)
    except SystemExit as stop:
        return int(str(stop.code))


# --- digests --------------------------------------------------------------------------------------------------------


def test_right_sha256_in_any_case(cli: Callable[..., Run], tmp_path: Path) -> None:
    """The expected digest may be upper case; the file is the same as without it, and the record says that it was
    checked."""
    plain = cli("convert", INT8).record
    checked = cli("convert", INT8, "--sha256", digest(INT8).upper(), "--out-dir", tmp_path / "b").record
    assert (checked["dst_sha256"], checked["src_sha256"]) == (plain["dst_sha256"], digest(INT8))
    assert checked["src_sha256_checked"] is True


def test_wrong_sha256_publishes_nothing(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Another digest is a mismatch that shows both, and nothing is left."""
    run = cli("convert", INT8, "--sha256", "0" * 64)
    assert (run.status, run.out, files(tmp_path)) == (1, "", [])
    assert "0" * 64 in run.err
    assert digest(INT8) in run.err


def test_trusted_sha256_is_recorded_and_not_checked(cli: Callable[..., Run]) -> None:
    """--trust-sha256 is recorded in lower case, and the record says that nobody checked it."""
    run = cli("convert", INT8, "--trust-sha256", "AB" * 32)
    assert (run.record["src_sha256"], run.record["src_sha256_checked"]) == ("ab" * 32, False)
    assert json.loads(run.file.metadata["unsloth_source"])["sha256"] == "ab" * 32


def test_verify_finds_a_digest_that_was_trusted_wrongly(cli: Callable[..., Run]) -> None:
    """The verb hashes the source, and sees that the provenance is not true."""
    dst = cli("convert", INT8, "--trust-sha256", "ab" * 32).record["dst"]
    run = cli("verify", INT8, dst)
    assert (run.status, run.out) == (1, "")
    assert "provenance" in run.err


def test_rightly_trusted_sha256_gives_the_same_file(cli: Callable[..., Run], tmp_path: Path) -> None:
    """The same bytes, whether the digest was computed or trusted."""
    plain = cli("convert", INT8).record
    trusted = cli("convert", INT8, "--trust-sha256", digest(INT8), "--out-dir", tmp_path / "b").record
    assert trusted["dst_sha256"] == plain["dst_sha256"]


# --- report, record, output streams ---------------------------------------------------------------------------------


def test_report_appends_what_standard_output_shows(cli: Callable[..., Run], tmp_path: Path) -> None:
    """One JSON line per converted file is appended, the same as on standard output; refused files have none."""
    report = tmp_path / "report.jsonl"
    first = cli("convert", INT8, NF4, "--report", report)
    second = cli("convert", INT8, "--report", report)
    assert (first.status, second.status) == (1, 0)
    assert report.read_text() == first.out + second.out
    assert len(first.records) == 1


def test_record_has_the_fields_of_the_contract(cli: Callable[..., Run]) -> None:
    """The named fields come first and in their order; a record that was not skipped has no such field."""
    record = cli("convert", INT8).record
    names = [
        "src",
        "dst",
        "kind",
        "format",
        "scheme",
        "tensors",
        "quantized",
        "int8_source",
        "reader",
        "src_bytes",
        "src_sha256",
        "dst_bytes",
        "dst_sha256",
        "seconds",
        "verified_bit_identical",
        "tied_copies_dropped",
    ]
    assert list(record)[: len(names)] == names
    assert "skipped" not in record
    assert record["verified_bit_identical"] is True
    assert record["activation"] == "same kind, torchao's own arithmetic"


def test_quiet_silences_notes(cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path) -> None:
    """What lies beside the state dict is a note on standard error, not with --quiet; the record has it either way."""
    path = save(a.program(a.value({"state_dict": {"a.w": W}, "epoch": 3})))
    loud = cli("convert", path)
    quiet = cli("convert", path, "--quiet", "--out-dir", tmp_path / "b")
    assert "epoch" in loud.err
    assert (quiet.err, quiet.record["warnings"]) == ("", loud.record["warnings"])


def test_pretty_is_for_people(cli: Callable[..., Run]) -> None:
    """--pretty renders the record as text that holds its digest."""
    run = cli("convert", INT8, "--pretty")
    assert run.status == 0
    assert digest(INT8) in run.out
    with pytest.raises(json.JSONDecodeError):
        json.loads(run.out)


# --- several sources, statuses --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A file that ends too early."""
    path = tmp_path / "cut.pt"
    path.write_bytes(INT8.read_bytes()[:5000])
    return path


def test_status_of_each_failure(cli: Callable[..., Run], damaged: Path, tmp_path: Path) -> None:
    """0 done, 1 refused, 2 malformed, no such file, a folder that cannot be made; one line each, no traceback."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for status, args in (
        (0, (INT8,)),
        (1, (NF4,)),
        (1, (tmp_path / "empty",)),
        (2, (tmp_path,)),
        (2, (damaged,)),
        (2, (tmp_path / "none.pt",)),
        (2, (INT8, "--out-dir", tmp_path / "file" / "x")),
        (2, (INT8, "--report", tmp_path / "none" / "r")),
    ):
        run = cli("convert", *args)
        assert run.status == status, args
        assert "Traceback" not in run.err
        assert status == 0 or (run.out == "" and run.err.startswith("depickle: ") and run.err.count("\n") == 1), run.err


def test_worst_status_wins_and_the_others_are_converted(cli: Callable[..., Run], damaged: Path, tmp_path: Path) -> None:
    """One failure does not stop the rest, before or behind it."""
    run = cli("convert", NF4, damaged, INT8)
    assert (run.status, len(run.records)) == (2, 1)
    assert files(tmp_path / "out") == ["int8dyn_default.wrapped.safetensors"]
    assert cli("convert", INT8, NF4, "--out-dir", tmp_path / "b").status == 1


def test_failure_leaves_nothing(cli: Callable[..., Run], damaged: Path, tmp_path: Path) -> None:
    """After a failure neither a file nor a folder is there that was not there before."""
    for source in (NF4, damaged):
        cli("convert", source, "--repo", "acme/tiny")
    assert files(tmp_path / "out") == []


def test_source_is_never_written(cli: Callable[..., Run], tmp_path: Path) -> None:
    """A read-only source in a read-only folder is converted, and is unchanged."""
    folder = tmp_path / "src"
    folder.mkdir()
    source = folder / "m.pt"
    source.write_bytes(INT8.read_bytes())
    before = source.stat()
    assert cli("convert", source).status == 0
    after = source.stat()
    assert (after.st_mtime_ns, after.st_size, files(folder)) == (before.st_mtime_ns, before.st_size, ["m.pt"])


def test_wrong_crc_is_malformed(cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path) -> None:
    """A record whose bytes do not have the archive's CRC-32 is malformed and named; nothing is published."""
    path = save(a.state_dict({"w": W}), {"0": a.Record(a.FOUR, crc=1, descriptor_crc=1)})
    run = cli("convert", path)
    assert (run.status, files(tmp_path / "out")) == (2, [])
    assert "data/0" in run.err
    assert "CRC" in run.err


# --- an existing destination ----------------------------------------------------------------------------------------


def test_identical_result_is_skipped(cli: Callable[..., Run]) -> None:
    """A second run says that it skipped, has the same digests, and does not touch the file."""
    first = cli("convert", INT8).record
    before = Path(first["dst"]).stat()
    second = cli("convert", INT8).record
    assert second["skipped"] is True
    assert {k: v for k, v in second.items() if k not in ("skipped", "seconds")} == {
        k: v for k, v in first.items() if k != "seconds"
    }
    after = Path(first["dst"]).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("at", [100, -1], ids=["header", "data"])
def test_damaged_result_is_not_skipped(at: int, cli: Callable[..., Run]) -> None:
    """A result with a flipped bit in header or data is refused, and replaced with --overwrite."""
    first = cli("convert", INT8).record
    path = Path(first["dst"])
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    path.write_bytes(bad)
    assert cli("convert", INT8).status == 1
    assert path.read_bytes() == bad
    run = cli("convert", INT8, "--overwrite")
    assert "skipped" not in run.record
    assert path.read_bytes() == good


@pytest.mark.parametrize("content", [b"", b"something else", bytes(9000)], ids=len)
def test_other_file_is_refused_unless_overwrite(content: bytes, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A destination that is another file is left alone; --overwrite replaces it."""
    path = tmp_path / "out" / "int8dyn_default.wrapped.safetensors"
    path.parent.mkdir()
    path.write_bytes(content)
    run = cli("convert", INT8)
    assert (run.status, path.read_bytes()) == (1, content)
    assert "--overwrite" in run.err
    assert cli("convert", INT8, "--overwrite").status == 0
    assert path.read_bytes() != content


def test_result_of_other_options_is_refused(cli: Callable[..., Run]) -> None:
    """The header of another revision is not the one now planned."""
    assert cli("convert", INT8, "--revision", "a").status == 0
    assert cli("convert", INT8, "--revision", "b").status == 1
    assert cli("convert", INT8, "--revision", "a").record["skipped"] is True


def test_overwrite_of_an_identical_result_skips(cli: Callable[..., Run]) -> None:
    """--overwrite replaces another file only."""
    cli("convert", INT8)
    assert cli("convert", INT8, "--overwrite").record["skipped"] is True


@pytest.mark.parametrize("kind", ["symlink", "folder", "fifo"])
def test_destination_that_is_no_file(kind: str, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A link, a folder or a FIFO in the place is refused, with --overwrite too."""
    path = tmp_path / "out" / "int8dyn_default.wrapped.safetensors"
    path.parent.mkdir()
    if kind == "symlink":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    for options in ((), ("--overwrite",)):
        assert cli("convert", INT8, *options).status in (1, 2)
    assert files(tmp_path) == ["out", f"out/{path.name}"]


# --- dry run --------------------------------------------------------------------------------------------------------


def test_dry_run_plans_what_a_run_does(cli: Callable[..., Run], tmp_path: Path) -> None:
    """The plan's segments cover the file without a hole, each copied one is the source's bytes at its place, and
    nothing is written."""
    run = cli("convert", INT8, "--dry-run", "--json")
    plan = json.loads(run.out)
    assert files(tmp_path) == []
    made = Path(cli("convert", INT8).record["dst"]).read_bytes()
    (planned,) = plan["files"]
    assert planned["length"] == len(made)
    source = INT8.read_bytes()
    at = planned["head"]
    for segment in planned["segments"]:
        assert segment["at"] == at
        number, offset, length = segment["from"]
        assert number == 0
        assert source[offset : offset + length] == made[at : at + segment["length"]]
        at += segment["length"]
    assert at == len(made)


def test_dry_run_for_people_and_of_refused(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Without --json the plan is text; what would be refused is refused; nothing is written either way."""
    assert "blk.0.attn.q.weight" in cli("convert", INT8, "--dry-run").out
    assert cli("convert", NF4, "--dry-run").status == 1
    assert files(tmp_path) == []


# --- tags and metadata ----------------------------------------------------------------------------------------------


def tagged(tag: Any, metadata: Any, items: Mapping[str, Any] | None = None) -> bytes:
    """A pickle with a TAG around one int8 weight, or the items given."""
    return a.checkpoint(tag, metadata, {"m.weight": a.int8_v1()} if items is None else items)


@pytest.mark.parametrize(
    ("tag", "metadata"), [(V1, {"scheme": "int8"}), (V2, ROTATION), (V3, POLICY)], ids=["v1", "v2", "v3"]
)
def test_denoiser_tags(tag: str, metadata: Any, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Each denoiser tag with the metadata that goes with it is converted, tag and metadata carried."""
    run = cli("convert", save(tagged(tag, metadata), a.int8_storages()))
    assert (run.record["format"], run.record["kind"], run.record["int8_source"]) == (tag, "transformer", "torchao_v1")
    assert run.file.metadata["unsloth_format"] == tag
    assert run.file.metadata["unsloth_metadata"] == json.dumps(metadata)


NOTHING: tuple[Any, ...] = (None, "", {}, [])


@pytest.mark.parametrize(
    ("tag", "metadata"),
    [
        (V1, ROTATION),
        (V1, POLICY),
        (V1, ROTATION | POLICY),
        (V2, {}),
        (V2, POLICY),
        (V2, ROTATION | POLICY),
        (V3, {}),
        (V3, ROTATION),
        (V3, ROTATION | POLICY),
        *((V2, {"activation_rotation": empty}) for empty in NOTHING),
        *((V3, {"nvfp4_policy": empty}) for empty in NOTHING),
    ],
    ids=str,
)
def test_tag_and_metadata_have_to_agree(
    tag: str, metadata: Any, cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """A tag whose metadata declares another set of features is refused, and so is a declaration that is null or
    empty."""
    run = cli("convert", save(tagged(tag, metadata), a.int8_storages()))
    assert run.status == 1
    assert tag in run.err


@pytest.mark.parametrize("empty", NOTHING, ids=repr)
def test_empty_declaration_is_none(empty: Any, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Tag v1 goes with a rotation that is null or empty."""
    metadata = {"activation_rotation": empty, "nvfp4_policy": empty}
    assert at_run(cli, save(tagged(V1, metadata), a.int8_storages()))["unsloth_metadata"] == json.dumps(metadata)


@pytest.mark.parametrize("tag", ["unsloth_prequant_transformer_state_dict_v4", "pt", 7, True, ("a",)], ids=str)
def test_unknown_tag_is_refused_and_shown(tag: Any, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Any other tag is refused, and the line shows it."""
    run = cli("convert", save(tagged(tag, {}), a.int8_storages()))
    assert run.status == 1
    assert "format tag" in run.err
    assert not isinstance(tag, (str, int)) or repr(tag) in run.err


def test_tag_without_state_dict_is_malformed(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A TAG with no state_dict, or with one that is no dict, is malformed."""
    for content in ({"format": V1, "metadata": {}}, {"format": V1, "metadata": {}, "state_dict": [1]}):
        assert cli("convert", save(a.program(a.value(content)))).status == 2


@pytest.mark.parametrize("head", [{"format": V1}, {"format": V1, "metadata": None}], ids=["missing", "null"])
def test_missing_metadata_is_empty(head: Any, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Missing or null metadata is {}."""
    content = a.program(a.value({**head, "state_dict": {"m.weight": a.int8_v1()}}))
    assert at_run(cli, save(content, a.int8_storages()))["unsloth_metadata"] == "{}"


def test_metadata_is_normalised_as_json_and_torch_spell_it(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Tuples, sizes, versions, dtypes, devices, non-finite floats and keys become what SPEC section 3 says; the record
    lists each."""
    metadata = {
        "plain": {"a": [1, 2.5, "ä", None, True, 10**30]},
        "tuple": (1, (2,)),
        "size": a.call("torch", "Size", (3, 4)),
        "version": a.call("torch.torch_version", "TorchVersion", "2.13.0+cpu"),
        "dtype": a.GLOBAL("torch", "bfloat16"),
        "device": a.call("torch", "device", "cpu"),
        "device index": a.call("torch", "device", "cuda", 1),
        "nan": float("nan"),
        "inf": float("-inf"),
        "ordered": a.ordered_dict({"z": 1, "a": 2}),
        True: "t",
        None: "n",
        3: "three",
        2.5: "f",
    }
    run = cli("convert", save(tagged(V1, metadata), a.int8_storages()))
    assert json.loads(run.file.metadata["unsloth_metadata"]) == {
        "plain": {"a": [1, 2.5, "ä", None, True, 10**30]},
        "tuple": [1, [2]],
        "size": [3, 4],
        "version": "2.13.0+cpu",
        "dtype": "torch.bfloat16",
        "device": "cpu",
        "device index": "cuda:1",
        "nan": "nan",
        "inf": "-inf",
        "ordered": {"z": 1, "a": 2},
        "true": "t",
        "null": "n",
        "3": "three",
        "2.5": "f",
    }
    changed = "\n".join(run.record["normalised"])
    for name in (
        "tuple",
        "tuple[1]",
        "size",
        "version",
        "dtype",
        "device",
        "nan",
        "inf",
        "true",
        "null",
        "'3'",
        "'2.5'",
    ):
        assert name in changed, name
    assert "plain" not in changed
    assert cli("verify", run.record["src"], run.record["dst"]).status == 0


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ({True: 1, "true": 2}, "metadata"),
        ({"a": {None: 1, "null": 2}}, "metadata.a"),
        ({3: 1, "3": 2}, "metadata"),
        ({"a": {"b": b"bytes"}}, "metadata.a.b"),
        ({"a": [0, W]}, "metadata.a[1]"),
        ({"a": a.EMPTY_SET}, "metadata.a"),
        ({(1, 2): 3}, "metadata"),
        ({"a": a.GLOBAL("torch", "Tensor")}, "metadata.a"),
    ],
    ids=range(8),
)
def test_metadata_that_json_cannot_hold(
    metadata: Any, place: str, cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """Two keys that become one, and any other object, are refused by their path."""
    run = cli("convert", save(tagged(V1, metadata), a.int8_storages() | {"0": a.FOUR}))
    assert run.status == 1
    assert f"{place}: " in run.err


def test_value_that_is_no_tensor_is_refused_by_name(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A number, a dict or None among the weights is refused, with the weight's name."""
    for value in (1, None, "x", {"a": 1}, [W]):
        run = cli("convert", save(a.checkpoint(ENCODER, {}, {"a.w": W, "b.odd": value})))
        assert run.status == 1
        assert "b.odd: " in run.err


# --- plain state dicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["state_dict", "model", "module", "model_state_dict"])
def test_nested_state_dict_is_found(key: str, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A dict that holds a state dict under a usual name is read, and what lies beside it is noted."""
    run = cli("convert", save(a.program(a.value({"step": 7, key: {"a.w": W}}))))
    assert list(run.file.tensors) == ["a.w"]
    assert any("step" in note for note in run.record["warnings"])


def test_other_keys_need_to_be_named(cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path) -> None:
    """--key names the state dict; without it the line shows what is there; a name that holds none is refused."""
    path = save(a.program(a.value({"ema": {"a.w": W}, "params": {"b.w": W}})))
    run = cli("convert", path)
    assert run.status == 1
    assert "--key" in run.err
    assert "'ema'" in run.err
    assert list(cli("convert", path, "--key", "params").file.tensors) == ["b.w"]
    assert cli("convert", path, "--key", "none", "--out-dir", tmp_path / "b").status == 1


def test_two_nested_state_dicts_need_a_choice(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Two usual names with tensors are not guessed between; --key chooses."""
    path = save(a.program(a.value({"model": {"a.w": W}, "module": {"b.w": W}})))
    run = cli("convert", path)
    assert run.status == 1
    assert "'model' and 'module'" in run.err
    assert list(cli("convert", path, "--key", "module").file.tensors) == ["b.w"]


def test_verify_takes_the_key_too(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A file that was converted with --key is verified with it."""
    path = save(a.program(a.value({"ema": {"a.w": W}})))
    dst = cli("convert", path, "--key", "ema").record["dst"]
    assert cli("verify", path, dst, "--key", "ema").status == 0
    assert cli("verify", path, dst).status == 1


def test_empty_state_dict_is_refused(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """There is nothing to convert in an empty dict."""
    assert cli("convert", save({})).status == 1
    assert cli("convert", save(a.checkpoint(ENCODER, {}, {}))).status == 1


def test_plain_state_dict_is_an_ordinary_file(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Without quantised weights: format, provenance, the order, and no key of torchao's."""
    run = cli("convert", save({"b": W, "a.w": W}))
    assert run.record["kind"] == "state_dict"
    assert list(run.file.metadata) == [
        "format",
        "depickle_source",
        "depickle_order",
        "depickle_ties",
        "depickle_header",
    ]
    assert json.loads(run.file.metadata["depickle_order"]) == ["b", "a.w"]


def test_root_names_of_a_plain_state_dict_stay(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """With quantised weights and without a TAG, root names keep their name and are listed."""
    file = cli("convert", save({"pad": W, "m.weight": a.int8_v1()}, a.int8_storages() | {"0": a.FOUR})).file
    assert set(file.tensors) == {"pad", "m._weight_qdata", "m._weight_scale"}
    assert json.loads(file.metadata["tensor_names"]) == ["pad", "m.weight"]
    assert json.loads(file.metadata["pad"]) == {"_type": "Tensor"}
    assert not any(key.startswith("unsloth") for key in file.metadata)


# --- names ----------------------------------------------------------------------------------------------------------


def test_root_names_of_a_tagged_file(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Root names go under the prefix, are listed apart, and have no entry; the order of all names is kept."""
    items = {"z_pad": W, "m.weight": a.int8_v1(), "a_pad": W}
    file = cli("convert", save(a.checkpoint(V1, {}, items), a.int8_storages() | {"0": a.FOUR})).file
    assert set(file.tensors) == {"unsloth_root::z_pad", "unsloth_root::a_pad", "m._weight_qdata", "m._weight_scale"}
    assert json.loads(file.metadata["unsloth_root_tensors"]) == ["z_pad", "a_pad"]
    assert json.loads(file.metadata["tensor_names"]) == ["m.weight"]
    assert json.loads(file.metadata["depickle_order"]) == ["z_pad", "m.weight", "a_pad"]
    assert not {"z_pad", "a_pad"} & set(file.metadata)


@pytest.mark.parametrize("tag", [V1, None], ids=["tagged", "plain"])
def test_quantised_root_weight_is_refused_by_name(
    tag: str | None, cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """A quantised weight without a module cannot be named in the layout."""
    items = {"a.w": W, "weight": a.int8_v1()}
    path = save(a.checkpoint(tag, {}, items) if tag else items, a.int8_storages() | {"0": a.FOUR})
    run = cli("convert", path)
    assert run.status == 1
    assert "weight: " in run.err


@pytest.mark.parametrize(
    ("items", "both"),
    [
        ({"a.x.weight": "q", "a.x._weight_qdata": W}, ("a.x.weight", "a.x._weight_qdata")),
        ({"a.x._weight_scale": W, "a.x.weight": "q"}, ("a.x.weight", "a.x._weight_scale")),
        ({"m.weight": "q", "format": W}, ("format", "header key")),
        ({"m.weight": "q", "tensor_names": W}, ("tensor_names", "header key")),
        ({"m.weight": "q", "__metadata__": W}, ("__metadata__", "header key")),
        ({"m.weight": "q", "depickle_ties": W}, ("depickle_ties", "header key")),
        ({"m.weight": "q", "unsloth_root::pad.x": W}, ("unsloth_root::pad.x", "prefix")),
        ({"m.weight": "q", "unsloth_root::pad": W}, ("unsloth_root::pad", "prefix")),
    ],
    ids="+".join,
)
@pytest.mark.parametrize("tag", [V1, None], ids=["tagged", "plain"])
def test_colliding_names_are_refused_naming_both(
    tag: str | None, items: Any, both: tuple[str, str], cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """Two tensors that would get one name, and names that the header or the prefix owns, are refused; the line has
    both sides."""
    made = {name: a.int8_v1() if value == "q" else value for name, value in items.items()}
    run = cli("convert", save(a.checkpoint(tag, {}, made) if tag else made, a.int8_storages() | {"0": a.FOUR}))
    assert run.status == 1
    assert all(text in run.err for text in both), run.err


def test_names_that_torchao_loses_are_converted_with_a_warning(
    cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """Beside a quantised a.w, a quantised a.w_x and a plain a._w_more are kept, and the record warns who loses a.w."""
    for other in ({"a.w_x": a.int8_v1("v")}, {"a._w_more": W}):
        storages = a.int8_storages() | a.int8_storages("v") | {"0": a.FOUR}
        run = cli("convert", save({"a.w": a.int8_v1(), **other}, storages), "--overwrite")
        assert any("a.w" in note and next(iter(other)).rpartition("x")[0] in note for note in run.record["warnings"])
        assert cli("verify", run.record["src"], run.record["dst"]).status == 0


def test_unusual_names_survive(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Names with quotes, slashes, non-ASCII, control characters and long ones come back as they were."""
    names = ['a."q"', "a.b/c\\d", "ü.ß", "a.\u202e", "a.\n", "a." + "x" * 5000, "a..b", ".", "a.", "\U0001f600.w"]
    run = cli("convert", save(dict.fromkeys(names, W)))
    assert json.loads(run.file.metadata["depickle_order"]) == names
    assert cli("verify", run.record["src"], run.record["dst"]).status == 0


# --- ties -----------------------------------------------------------------------------------------------------------


def encoder(*names: str) -> bytes:
    """A text encoder in which all the names are one tensor."""
    return a.checkpoint(ENCODER, {}, dict.fromkeys(names, W))


def ties(run: Run) -> Any:
    return json.loads(run.file.metadata.get("depickle_ties", "{}"))


def test_ties_are_copied_by_default(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Each tied name is written as a copy of its own, and the header says so."""
    run = cli("convert", save(encoder("a.e", "b.e", "lm_head.weight")))
    assert {name: tensor.data for name, tensor in run.file.tensors.items()} == dict.fromkeys(
        ["a.e", "b.e", "lm_head.weight"], a.FOUR
    )
    assert ties(run) == {"copied": {"b.e": "a.e", "lm_head.weight": "a.e"}}
    assert run.record["tied_copies_dropped"] == {}


@pytest.mark.parametrize(
    ("names", "dropped", "copied"),
    [
        (("a.e", "b.e"), {"b.e": "a.e"}, {}),
        (("a.e", "lm_head.weight"), {}, {"lm_head.weight": "a.e"}),
        (("a.e", "b.e", "lm_head.weight"), {"b.e": "a.e"}, {"lm_head.weight": "a.e"}),
        (("a.e", "lm_head.weight", "b.e"), {"b.e": "a.e"}, {"lm_head.weight": "a.e"}),
        (("lm_head.weight", "a.e", "b.e"), {"a.e": "lm_head.weight", "b.e": "lm_head.weight"}, {}),
        (("a.e", "model.lm_head.weight"), {}, {"model.lm_head.weight": "a.e"}),
        (("lm_head.weight", "x.lm_head.weight"), {}, {"x.lm_head.weight": "lm_head.weight"}),
        (("root", "a.e"), {"a.e": "root"}, {}),
        (("a.e", "root"), {"root": "a.e"}, {}),
    ],
    ids=lambda value: "+".join(value) or "-",
)
def test_dropped_ties(
    names: tuple[str, ...],
    dropped: Any,
    copied: Any,
    cli: Callable[..., Run],
    save: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """The later name is left out and listed; a head never is; a head that comes first is the source; all names
    verify."""
    run = cli("convert", save(encoder(*names)), "--drop-tied-copies")
    stored = {name.removeprefix("unsloth_root::") for name in run.file.tensors}
    assert stored == set(names) - set(dropped)
    assert run.record["tied_copies_dropped"] == dropped
    assert run.record["tensors"] == len(names)
    assert ties(run) == {key: value for key, value in (("dropped", dropped), ("copied", copied)) if value}
    order = run.file.metadata.get("depickle_order", run.file.metadata["tensor_names"])
    assert json.loads(order) == list(names)
    assert cli("verify", run.record["src"], run.record["dst"]).status == 0
    again = cli("convert", run.record["dst"], "--out-dir", tmp_path / "again")
    assert (again.record["tied_copies_dropped"], ties(again)) == (dropped, ties(run))


def test_dropped_name_is_not_in_the_torchao_list(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """tensor_names lists what the file holds."""
    file = cli("convert", save(encoder("a.e", "b.e")), "--drop-tied-copies").file
    assert json.loads(file.metadata["tensor_names"]) == ["a.e"]
    assert "b.e" not in file.metadata


def test_drop_is_for_text_encoders(cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path) -> None:
    """With a denoiser, and with a plain state dict, the flag is a usage error."""
    for source in (INT8, save({"a.w": W})):
        run = cli("convert", source, "--drop-tied-copies")
        assert (run.status, files(tmp_path / "out")) == (2, [])


def test_what_is_no_tie(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Another offset, shape, stride, dtype or storage, and empty tensors, are no ties."""
    items = {
        "a.base": a.tensor("0", "FloatStorage", 4),
        "a.shape": a.tensor("0", "FloatStorage", 4, (2, 2)),
        "a.stride": a.tensor("0", "FloatStorage", 4, (2, 2), (1, 2)),
        "a.part": a.tensor("0", "FloatStorage", 4, (2,)),
        "a.offset": a.tensor("0", "FloatStorage", 4, (2,), offset=2),
        "a.twin": a.tensor("1", "FloatStorage", 4),
        "a.none": a.tensor("2", "FloatStorage", 0, (0,)),
        "a.none2": a.tensor("2", "FloatStorage", 0, (0,)),
    }
    run = cli(
        "convert", save(a.checkpoint(ENCODER, {}, items), {"0": a.FOUR, "1": a.FOUR, "2": b""}), "--drop-tied-copies"
    )
    assert (run.record["tied_copies_dropped"], "depickle_ties" in run.file.metadata) == ({}, False)
    assert len(run.file.tensors) == len(items)


def test_tied_quantised_weights_are_written_twice(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Two names of one quantised weight are two weights in the file, and the header says that they were one."""
    run = cli("convert", save(tagged(V1, {}, {"m.weight": a.int8_v1(), "n.weight": a.int8_v1()}), a.int8_storages()))
    assert set(run.file.tensors) == {f"{m}._weight_{part}" for m in "mn" for part in ("qdata", "scale")}
    assert ties(run) == {"copied": {"n.weight": "m.weight"}}


@pytest.mark.parametrize("name", ["te_qwen_tied", "te_qwen_tied_detached", "te_t5_tied", "te_qwen_torchversion"])
def test_real_text_encoders_with_dropped_ties(name: str, cli: Callable[..., Run]) -> None:
    """On real ones: what is dropped is what the truth ties, less heads, and the pair verifies."""
    case = next(case for case in truth.cases(FIXTURES) if case.path.stem == name)
    run = cli("convert", case.path, "--drop-tied-copies")
    expected = {
        alias: source for alias, source in truth.ties(case.truth).items() if not alias.endswith("lm_head.weight")
    }
    assert run.record["tied_copies_dropped"] == expected
    assert len(run.file.tensors) == len(case.truth["key_order"]) - len(expected)
    assert cli("verify", case.path, run.record["dst"]).status == 0


def test_lost_tensor_is_not_a_dropped_tie(cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path) -> None:
    """A file of another writer that lacks a name does not verify."""
    path = save({"a.w": W, "b.w": W})
    other = tmp_path / "other.safetensors"
    other.write_bytes(a.safetensors_file({"a.w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, a.FOUR))
    run = cli("verify", path, other)
    assert run.status == 1
    assert "b.w: is in the source, not in the output" in run.err


# --- text encoders --------------------------------------------------------------------------------------------------


def test_convrot_text_encoder(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Int8 projections as plain tensors beside their scales: plain tensors all, and no layout key."""
    items = {
        "a.q.weight": a.tensor("q", "CharStorage", 8, (2, 4)),
        "a.q.weight_scale": a.tensor("s", "FloatStorage", 2, (2, 1)),
        "a.q.comfy_quant": a.tensor("c", "ByteStorage", 3),
    }
    storages = {"q": bytes(range(8)), "s": a.FOUR[:8], "c": b"{ }"}
    run = cli("convert", save(a.checkpoint(CONVROT, {"scheme": "int8"}, items), storages))
    record = run.record
    assert (record["kind"], record["quantized"], record["scheme"], record["int8_source"]) == (
        "text_encoder",
        0,
        "int8",
        None,
    )
    assert "unsloth_quant_layout" not in run.file.metadata
    assert json.loads(run.file.metadata["tensor_names"]) == list(items)


def test_quantised_weight_in_a_text_encoder_is_refused(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A text encoder holds plain tensors only."""
    run = cli("convert", save(tagged(ENCODER, {}), a.int8_storages()))
    assert run.status == 1
    assert "m.weight: " in run.err


# --- int8 of torchao v1 ---------------------------------------------------------------------------------------------


def test_int8_facts_are_written_only_where_true(
    cli: Callable[..., Run], save: Callable[..., Path], tmp_path: Path
) -> None:
    """A zero point that is left out, or domain INT, makes int8_v1 untrue: neither header nor record claims it."""
    domain = a.call("torchao.quantization.quant_primitives", "ZeroPointDomain", 1)
    zero = {"zero_point": a.tensor("z", "LongStorage", 2)}
    storages = a.int8_storages() | {"z": bytes(16)}
    for i, weight in enumerate((a.int8_v1(impl=zero), a.int8_v1(aqt={"zero_point_domain": domain}))):
        run = cli("convert", save(tagged(V1, {}, {"m.weight": weight}), storages), "--out-dir", tmp_path / str(i))
        layout = json.loads(run.file.metadata["unsloth_quant_layout"])
        assert run.record["int8_source"] is None
        assert not {"int8_source", "int8_v1"} & set(layout)
        assert set(run.file.tensors) == {"m._weight_qdata", "m._weight_scale"}


@pytest.mark.parametrize(
    "change",
    [
        {"impl": {"zero_point": a.tensor("z", "LongStorage", 2)}},
        {"laqt": {"input_quant_func": a.GLOBAL("torchao.quantization.quant_api", "_int8_symm_cutlass_quant")}},
        {"laqt": {"quant_kwargs": {"x": 1}}},
        {"aqt": {"block_size": (1, 2)}},
        {"aqt": {"zero_point_domain": a.call("torchao.quantization.quant_primitives", "ZeroPointDomain", 2)}},
        {"aqt": {"quant_min": -127, "quant_max": 127}},
        {"impl": {"_layout": a.new("torchao.dtypes.uintx.q_dq_layout", "QDQLayout")}},
        {"impl": {"scale": a.tensor("w.d", "CharStorage", 8, (2,))}},
    ],
    ids=["live zero point", "function", "kwargs", "block size", "domain FLOAT", "range", "layout", "integer scale"],
)
def test_int8_that_is_not_exact_is_refused(change: Any, cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """A weight that differs in any fact is refused, with its name and the fact."""
    storages = a.int8_storages() | {"z": struct.pack("<2q", 0, 1)}
    run = cli("convert", save(tagged(V1, {}, {"m.weight": a.int8_v1(**change)}), storages))
    assert run.status == 1
    assert "m.weight: " in run.err
    assert "expected" in run.err


def integer_zero_points(stride: tuple[int, int]) -> tuple[bytes, dict[str, bytes]]:
    """int4 in the plain layout with live zero points of int64, which int8 holds: a checkpoint and its storages."""
    weight = a.int8_v1(
        impl={
            "zero_point": a.tensor("z", "LongStorage", 4, (2, 2), stride),
            "scale": a.tensor("w.s", "BFloat16Storage", 4, (2, 2)),
        },
        aqt={
            "block_size": (1, 2),
            "quant_min": -8,
            "quant_max": 7,
            "zero_point_domain": a.call("torchao.quantization.quant_primitives", "ZeroPointDomain", 1),
        },
        laqt={"input_quant_func": a.GLOBAL("torchao.quantization.quant_api", "_int8_asymm_per_token_quant")},
    )
    storages = {"w.d": bytes(8), "w.s": b"\x80\x3f" * 4, "z": struct.pack("<4q", 1, -2, 3, -4)}
    return tagged(V1, {}, {"m.weight": weight}), storages


@pytest.mark.parametrize(
    ("stride", "wanted"), [((2, 1), (1, -2, 3, -4)), ((1, 2), (1, 3, -2, -4))], ids=["contiguous", "transposed"]
)
def test_integer_zero_points_are_narrowed(
    stride: tuple[int, int], wanted: tuple[int, ...], cli: Callable[..., Run], save: Callable[..., Path]
) -> None:
    """Integers that int8 holds are cast, in any view, or refused; a mismatch of our own making would be a fault."""
    run = cli("convert", save(*integer_zero_points(stride)))
    assert "is not what its source holds" not in run.err
    if run.status == 0:
        assert run.file.tensors["m._weight_zero_point"].data == struct.pack("4b", *wanted)


# --- the file -------------------------------------------------------------------------------------------------------


def every(kind: str) -> list[Path]:
    """Fixtures of one kind in every release."""
    return sorted(FIXTURES.glob(f"*/{kind}.wrapped.pt"))


@pytest.mark.parametrize(
    "path", [*every("int8dyn_default"), *every("mixed_fp8_nvfp4")], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_header_form(path: Path, cli: Callable[..., Run]) -> None:
    """The data starts on a page, padded with spaces; keys stand in one order; none of ours has a dot or begins like a
    part."""
    file = cli("convert", path).file
    assert file.data_start % 4096 == 0
    assert file.raw.rstrip(b" ").endswith(b"}")
    keys = list(file.metadata)
    names = json.loads(file.metadata["tensor_names"])
    ours = [key for key in keys if key not in names]
    assert ours == [
        "format",
        "unsloth_format",
        "unsloth_metadata",
        "unsloth_quant_layout",
        "unsloth_source",
        "tensor_names",
        "unsloth_root_tensors",
        "depickle_order",
        "depickle_header",
    ]
    assert keys[6 : 6 + len(names)] == names
    assert not any("." in key or key.startswith("_") for key in ours)


def test_tensors_stand_as_the_safetensors_package_puts_them(cli: Callable[..., Run], tmp_path: Path) -> None:
    """The package's own serializer gives the same tensors the same order and offsets, for every dtype of the
    fixtures."""
    safetensors = pytest.importorskip("safetensors")
    for i, path in enumerate(sorted((FIXTURES / "edge").glob("*.pt")) + every("mxfp8_cfg") + every("nvfp4_wo")):
        run = cli("convert", path, "--out-dir", tmp_path / str(i))
        if run.status:
            continue
        file = run.file
        held = {
            name: ctypes.create_string_buffer(tensor.data, len(tensor.data) or 1)
            for name, tensor in file.tensors.items()
        }
        given = {
            name: safetensors.TensorSpec(
                dtype=tensor.dtype, shape=tensor.shape, data_ptr=ctypes.addressof(held[name]), data_len=len(tensor.data)
            )
            for name, tensor in sorted(file.tensors.items())
        }
        theirs = tmp_path / "theirs"
        theirs.write_bytes(safetensors.serialize(given))
        assert list(outside.read(theirs).entries.items()) == list(file.entries.items()), path.name


@pytest.mark.parametrize(
    "source", [INT8, FIXTURES / "edge/te_t5_tied.pt", FIXTURES / "edge/views_shared.pt"], ids=lambda p: p.stem
)
def test_same_bytes_everywhere(source: Path, tmp_path: Path) -> None:
    """Two processes with other hash seeds, working folders and destinations, the source in another folder, another
    day: one digest."""
    digests = set()
    for i, seed in enumerate(("1", "2")):
        folder = tmp_path / f"place {i}"
        folder.mkdir()
        copy = folder / source.name
        copy.write_bytes(source.read_bytes())
        os.utime(copy, (i * 10**8, i * 10**8))
        command = [sys.executable, "-m", "depickle", "convert", source.name, "--out-dir", f"out{i}"]
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": ("UTC", "Asia/Tokyo")[i]}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
        digests.add(json.loads(done.stdout)["dst_sha256"])
        assert digest(folder / json.loads(done.stdout)["dst"]) in digests
    assert len(digests) == 1


# --- verification ---------------------------------------------------------------------------------------------------


def small(save: Callable[..., Path]) -> Path:
    """A checkpoint with a tag, metadata, a quantised weight, a root name, a tie and a view."""
    items = {
        "m.weight": a.int8_v1(),
        "pad": W,
        "n.bias": W,
        "n.t": a.tensor("1", "FloatStorage", 4, (2, 2), (1, 2)),
    }
    return save(tagged(V1, {"scheme": "int8", "x": [1, None]}, items), a.int8_storages() | {"0": a.FOUR, "1": a.FOUR})


def unnoticed(source: Path, made: Path, places: range, mask: int) -> list[int]:
    """The bytes of an output that can be flipped without verification failing; a failure in the data has to say which
    byte."""
    good = made.read_bytes()
    start = outside.read(made).data_start
    passed = []
    with made.open("r+b", buffering=0) as file:
        for at in places:
            os.pwrite(file.fileno(), bytes([good[at] ^ mask]), at)
            try:
                depickle.verify(source, made)
            except depickle.Error as error:
                said = str(error)
            else:
                said = ""
                passed.append(at)
            assert at < start or not said or re.search(rf"(file byte {at}\)|differs at byte \d+)", said), said
            os.pwrite(file.fileno(), good[at : at + 1], at)
    return passed


@pytest.mark.parametrize("mask", [0x01, 0x20], ids=hex)
def test_any_flipped_byte_shows(mask: int, save: Callable[..., Path], tmp_path: Path) -> None:
    """Every single byte of a small output, header and padding included, flipped: verification fails; in the data it
    says at which byte.

    With the second mask, which makes other letters of letters, only the header's text: the rest is covered by the
    first.
    """
    source = small(save)
    made = Path(depickle.convert(source, tmp_path / "out").dst)
    length = made.stat().st_size if mask == 1 else 8 + len(outside.read(made).raw.rstrip(b" "))
    assert unnoticed(source, made, range(length), mask) == []
    assert depickle.verify(source, made).sealed


def test_cut_or_lengthened_output_shows(cli: Callable[..., Run], save: Callable[..., Path]) -> None:
    """Bytes missing at the end, or too many, fail."""
    source = small(save)
    made = Path(cli("convert", source).record["dst"])
    good = made.read_bytes()
    for bad in (good[:-1], good + b"\0", good[:4096], good[:7], b""):
        made.write_bytes(bad)
        assert cli("verify", source, made).status in (1, 2)


@pytest.mark.parametrize("path", [INT8, FIXTURES / "0.14.1/nvfp4_wo.wrapped.pt"], ids=lambda path: path.stem)
def test_one_bit_of_one_scale(path: Path, cli: Callable[..., Run]) -> None:
    """One bit of one scale flipped: the verb fails with status 1 and names the weight and the byte."""
    run = cli("convert", path)
    made = Path(run.record["dst"])
    entry = run.file.entries["blk.0.attn.q._weight_scale"]
    at = run.file.data_start + entry["data_offsets"][0] + 5
    data = bytearray(made.read_bytes())
    data[at] ^= 4
    made.write_bytes(data)
    failed = cli("verify", path, made)
    assert (failed.status, failed.out) == (1, "")
    assert (
        f"blk.0.attn.q.weight.scale: differs at byte 5 of {entry['data_offsets'][1] - entry['data_offsets'][0]} (file byte {at})"
        in failed.err
    )


def test_verify_never_touches_a_file(cli: Callable[..., Run], tmp_path: Path) -> None:
    """A pair that fails stays as it is."""
    made = Path(cli("convert", INT8).record["dst"])
    data = bytearray(made.read_bytes())
    data[-1] ^= 1
    made.write_bytes(data)
    before = (files(tmp_path), made.stat().st_mtime_ns)
    assert cli("verify", INT8, made).status == 1
    assert (files(tmp_path), made.stat().st_mtime_ns) == before


def test_verify_prints_what_it_compared(cli: Callable[..., Run]) -> None:
    """A pair that passes gives both digests and the number of bytes compared."""
    run = cli("convert", INT8)
    shown = cli("verify", INT8, run.record["dst"]).record
    assert (shown["src_sha256"], shown["dst_sha256"]) == (digest(INT8), run.record["dst_sha256"])
    assert shown["bytes_compared"] == sum(len(tensor.data) for tensor in run.file.tensors.values())
    assert (shown["verified_bit_identical"], shown["sealed"]) == (True, True)


def test_verify_of_a_pair_that_is_none(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Another source, a source as output, and a file that is not there."""
    made = cli("convert", INT8).record["dst"]
    assert cli("verify", FIXTURES / "0.12.0/int8dyn_default.wrapped.pt", made).status == 1
    assert cli("verify", INT8, INT8).status in (1, 2)
    assert cli("verify", INT8, tmp_path / "none").status == 2


# --- inspect, version, module ---------------------------------------------------------------------------------------


def test_inspect_shows_what_convert_would_meet(cli: Callable[..., Run]) -> None:
    """Tag, kind, counts and metadata of a checkpoint that converts, names of what has no form in one that does not."""
    found = cli("inspect", INT8, "--json").record
    assert (found["format"], found["kind"], found["tensors"]) == (V1, "transformer", 7)
    assert (found["int8_source"], found["bytes"]) == ("torchao_v1", INT8.stat().st_size)
    refused = cli("inspect", NF4, "--json").record
    assert refused["without_form"] == ["blk.0.attn.q.weight", "blk.0.mlp.up.weight"]
    assert "NF4Tensor" in cli("inspect", NF4).out


def test_version_and_module(cli: Callable[..., Run]) -> None:
    """`depickle --version` and `python -m depickle --version` say the same."""
    run = cli("--version")
    assert (run.status, run.out) == (0, f"depickle {depickle.__version__}\n")
    done = subprocess.run([sys.executable, "-m", "depickle", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run.out
