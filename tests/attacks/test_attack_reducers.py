"""Lines 1, 2, 3, 6, 7, 13 and 33: every callable that the public scanners know of, by every opcode that can call it."""

from __future__ import annotations

import re
import sys

import gadgets
import harness
import pytest
from harness import EITHER, REFUSED, attack

from assemble import (
    BINGET,
    BINPUT,
    EMPTY_DICT,
    GLOBAL,
    INST,
    MARK,
    MEMOIZE,
    NEWOBJ,
    NEWOBJ_EX,
    OBJ,
    POP,
    POP_MARK,
    PROTO,
    REDUCE,
    SHORT_BINUNICODE,
    STACK_GLOBAL,
    STOP,
    asm,
    call,
    checkpoint,
    framed,
    program,
    state_dict,
    string,
    tensor,
    torch_file,
    value,
)  # fmt: skip
from depickle import vm
from depickle.inert import Call, Global

COMMAND = "touch canary"

# How a callable can be called, as the opcodes that leave the result on the stack.
FORMS = {
    "REDUCE": lambda module, name: asm(GLOBAL(module, name), value((COMMAND,)), REDUCE),
    "INST": lambda module, name: asm(MARK, string(COMMAND), INST(module, name)),
    "OBJ": lambda module, name: asm(MARK, GLOBAL(module, name), string(COMMAND), OBJ),
    "NEWOBJ": lambda module, name: asm(GLOBAL(module, name), value((COMMAND,)), NEWOBJ),
    "NEWOBJ_EX": lambda module, name: asm(GLOBAL(module, name), value((COMMAND,)), EMPTY_DICT, NEWOBJ_EX),
    "STACK_GLOBAL": lambda module, name: asm(string(module), string(name), STACK_GLOBAL, value((COMMAND,)), REDUCE),
}


def named(module: str, name: str) -> str:
    return f"{re.escape(module)}[. ]{re.escape(name)}"


def beside_a_tensor(payload: bytes) -> bytes:
    return torch_file(state_dict({"good": tensor(), "bad": payload}))


@pytest.mark.parametrize("form", FORMS)
def test_the_machine_only_notes_it(form):
    """Line 1, 2, 33. The machine reads each call as data, and remembers who is called and where."""
    loaded = set(sys.modules)
    for module, name in gadgets.ALL:
        made = vm.run(program(FORMS[form](module, name)))
        assert type(made.value) is Call
        assert type(made.value.func) is Global
        assert (made.value.func.module, made.value.func.name) == (module, name)
        assert made.value.args == (COMMAND,)
        assert [(each.module, each.name) for each in made.globals] == [(module, name)]
    assert set(sys.modules) == loaded


@attack(33, "60 advisories of picklescan, see gadgets.py", REFUSED, unclean=True)
def gadget_as_a_value():
    """A callable of the scanners' corpora in the place of a weight, by REDUCE."""
    for module, name in gadgets.ALL:
        yield f"{module}.{name}", beside_a_tensor(FORMS["REDUCE"](module, name)), named(module, name)


@attack(2, "fickling PR #108", REFUSED, commands=(), looks=())
def gadget_by_another_opcode():
    """The same by INST, OBJ, NEWOBJ, NEWOBJ_EX and STACK_GLOBAL, which some scanners do not follow."""
    for form, write in FORMS.items():
        for module, name in gadgets.ALL:
            if form != "REDUCE":
                yield f"{form}-{module}.{name}", beside_a_tensor(write(module, name)), named(module, name)


@attack(1, "", REFUSED, r"os[. ]system|posix[. ]system", unclean=True)
def call_in_another_place():
    """A call where a value is expected: as the whole pickle, a key, a tag, metadata, a shape, hooks, an OrderedDict's
    entry."""
    bad = call("os", "system", COMMAND)
    yield "top", torch_file(program(bad))
    yield "top-posix", torch_file(program(call("posix", "system", COMMAND)))
    yield "key", torch_file(state_dict({bad: tensor()}))
    yield "tag", torch_file(checkpoint(bad, {}, {"a.w": tensor()}))
    yield (
        "metadata",
        torch_file(checkpoint("unsloth_prequant_text_encoder_state_dict_v1", {"x": bad}, {"a.w": tensor()})),
    )
    yield (
        "metadata-itself",
        torch_file(checkpoint("unsloth_prequant_text_encoder_state_dict_v1", bad, {"a.w": tensor()})),
    )
    yield "state_dict", torch_file(checkpoint("unsloth_prequant_text_encoder_state_dict_v1", {}, bad))
    yield "shape", torch_file(state_dict({"w": tensor(shape=(bad,), stride=(1,))}))
    yield "shape-itself", torch_file(state_dict({"w": tensor(shape=bad, stride=(1,))}))
    yield "hooks", torch_file(state_dict({"w": tensor(hooks=bad)}))
    yield "requires_grad", torch_file(state_dict({"w": tensor(requires_grad=bad)}))
    yield "storage-key", torch_file(state_dict({"w": tensor(bad)}))
    yield "numel", torch_file(state_dict({"w": tensor(numel=bad, shape=(4,))}))
    yield "argument-of-harmless-call", torch_file(state_dict({"w": call("collections", "OrderedDict", bad)}))
    yield "call-of-a-call", torch_file(state_dict({"w": asm(bad, value(()), REDUCE)}))
    yield "ignored-extra-key", torch_file(program(value({"state_dict": {"w": tensor()}, "epoch": bad})))


@attack(2, "fickling PR #108", REFUSED, r"pty[. ]spawn", unclean=True)
def obj_after_global():
    """OBJ and INST by hand, in protocol 0 as well."""
    yield "obj", torch_file(program(asm(MARK, GLOBAL("pty", "spawn"), string("sh"), OBJ)))
    yield "inst", torch_file(program(asm(MARK, string("sh"), INST("pty", "spawn"))))
    yield "no-proto", torch_file(asm(MARK, GLOBAL("pty", "spawn"), string("sh"), OBJ, STOP))


@attack(3, "picklescan's list", REFUSED, r"os[. ]system", unclean=True)
def stack_global_from_elsewhere():
    """STACK_GLOBAL whose module and name come out of the memo, or with other values put and taken between."""
    memo = asm(string("os"), BINPUT(0), POP, string("system"), BINPUT(1), POP, BINGET(0), BINGET(1), STACK_GLOBAL)
    yield "memo", beside_a_tensor(asm(memo, value((COMMAND,)), REDUCE))
    memoized = asm(SHORT_BINUNICODE("os"), MEMOIZE, SHORT_BINUNICODE("system"), MEMOIZE, STACK_GLOBAL, MEMOIZE)
    yield "memoize", torch_file(asm(PROTO(4), framed(memoized, value((COMMAND,)), REDUCE, STOP)))
    between = asm(string("os"), string("decoy"), POP, string("system"), MARK, string("x"), POP_MARK, STACK_GLOBAL)
    yield "pops-between", beside_a_tensor(asm(between, value((COMMAND,)), REDUCE))


@attack(6, "fickling GHSA-5j3x-jp52-966f", REFUSED, unclean=True)
def dotted_names():
    """A global whose dotted name walks from an allowed module or class to another one."""
    for module, name in (
        ("torch", "serialization.os.system"),
        ("torch.serialization", "os.system"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("collections", "OrderedDict.__class__"),
        ("collections", "OrderedDict.__init__.__globals__"),
        ("torch", "FloatStorage.__init__.__globals__"),
        ("torchao.quantization", "Float8Tensor.__class__"),
        ("torch.nn.parameter", "Parameter.__reduce_ex__"),
    ):
        yield f"{module}-{name}", beside_a_tensor(call(module, name, COMMAND)), named(module, name)


@attack(7, "GHSA-955r-x9j8-7rhh, GHSA-m273-6v24-x4m4, GHSA-vvpj-8cmc-gx39", REFUSED, unclean=True)
def universal_resolvers():
    """A harmless looking call that finds and calls anything: resolve_name, methodcaller, attrgetter, partial, a chain
    of them."""
    importer = call("builtins", "__import__", "os")
    chains = {
        "pkgutil.resolve_name": asm(call("pkgutil", "resolve_name", "os:system"), value((COMMAND,)), REDUCE),
        "operator.methodcaller": asm(call("operator", "methodcaller", "system", COMMAND), value((importer,)), REDUCE),
        "operator.attrgetter": asm(call("operator", "attrgetter", "system"), value((importer,)), REDUCE),
        "functools.partial": asm(call("functools", "partial", GLOBAL("os", "system")), value((COMMAND,)), REDUCE),
        "builtins.getattr": asm(call("builtins", "getattr", importer, "system"), value((COMMAND,)), REDUCE),
    }
    for name, chain in chains.items():
        yield name, beside_a_tensor(chain), f"{re.escape(name)}|builtins.__import__|os.system"


@attack(13, "GHSA-84r2-jw7c-4r5q", REFUSED, unclean=True)
def pickle_in_a_pickle():
    """A pickle in a bytes object that a loader named by the outer one would read; code objects; joblib, cloudpickle,
    torch.load."""
    inner = bytes(program(call("os", "system", COMMAND)))
    for module, name in (
        ("pickle", "loads"),
        ("_pickle", "loads"),
        ("dill", "loads"),
        ("cloudpickle.cloudpickle", "subimport"),
        ("torch.storage", "_load_from_bytes"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("joblib", "load"),
        ("numpy", "load"),
        ("marshal", "loads"),
    ):
        yield f"{module}.{name}", beside_a_tensor(call(module, name, inner)), named(module, name)
    code = call("types", "CodeType", 0, 0, 0, 0, 1, 67, b"d\0S\0", (None,), (), (), "f", "g", "h", 1, b"", b"", (), ())
    yield "CodeType", beside_a_tensor(call("types", "FunctionType", code, {})), "types[. ](CodeType|FunctionType)"


@attack(13, "", EITHER, "bytes|bad|not a tensor")
def pickle_as_a_value():
    """A pickle in a bytes object that nothing would read."""
    yield "bytes", beside_a_tensor(value(bytes(program(call("os", "system", COMMAND)))))


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
