"""Which globals a pickle has no business naming: what `depickle scan` calls dangerous.

A pickle that names something of Python's standard library, beside the few types that only hold data, can run code
through it: almost every module there has a function that evaluates, imports, opens, connects or starts something, and
new ones are found all the time. So the whole library counts, and then what is known of others. This table colours a
report and guards nothing: what depickle converts is decided by what it knows to read, never by this.

Sources: the advisories on picklescan, fickling and modelscan up to 2026, and their lists.
"""

from __future__ import annotations

import sys
from typing import Final

# Types of the standard library that hold data and do nothing when they are made.
HARMLESS: Final = frozenset(
    {
        "collections.Counter",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "copyreg._reconstructor",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "decimal.Decimal",
        "fractions.Fraction",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib.PureWindowsPath",
        "pathlib.WindowsPath",
        "types.SimpleNamespace",
        "uuid.UUID",
        "_codecs.encode",
        *(
            f"{module}.{name}"
            for module in ("builtins", "__builtin__")
            for name in (
                "bool",
                "bytearray",
                "bytes",
                "complex",
                "dict",
                "float",
                "frozenset",
                "int",
                "list",
                "long",
                "object",
                "range",
                "set",
                "slice",
                "str",
                "tuple",
                "unicode",
                "xrange",
            )
        ),
    }
)
# Old names of modules of the standard library, and modules that Python has on other systems.
_OLD: Final = frozenset(
    [
        "_aix_support",
        "_osx_support",
        "aifc",
        "audioop",
        "binhex",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "idlelib",
        "imghdr",
        "lib2to3",
        "mailcap",
        "nis",
        "ossaudiodev",
        "sndhdr",
        "spwd",
        "sunau",
        "turtledemo",
        "uu",
        "xdrlib",
        "__builtin__",
        "__builtins__",
        "commands",
        "copy_reg",
        "cPickle",
        "cStringIO",
        "distutils",
        "dummy_thread",
        "exceptions",
        "httplib",
        "imp",
        "nt",
        "os2",
        "popen2",
        "smtpd",
        "sets",
        "telnetlib",
        "test",
        "thread",
        "urllib2",
        "urlparse",
        "asynchat",
        "asyncore",
        "pipes",
        "nntplib",
        "msilib",
    ]
)
# Packages outside the standard library in which whatever a pickle could name runs, loads or fetches something.
PACKAGES: Final = (
    "_pyrepl",
    "aiohttp",
    "cloudpickle",
    "dill",
    "fickling",
    "httpx",
    "ipykernel",
    "IPython",
    "joblib",
    "numpy.ctypeslib",
    "numpy.distutils",
    "numpy.f2py",
    "numpy.testing",
    "pandas.io.pickle",
    "paramiko",
    "pexpect",
    "pip",
    "pkg_resources",
    "psutil",
    "ptyprocess",
    "pwn",
    "requests",
    "setuptools",
    "torch._dynamo",
    "torch._inductor",
    "torch.classes",
    "torch.distributed",
    "torch.fx",
    "torch.hub",
    "torch.jit",
    "torch.ops",
    "torch.package",
    "torch.utils",
    "urllib3",
    "wheel",
)
# Single names of packages that otherwise hold data.
NAMES: Final = frozenset(
    {
        "numpy.fromfile",
        "numpy.fromregex",
        "numpy.genfromtxt",
        "numpy.load",
        "numpy.loadtxt",
        "numpy.memmap",
        "numpy.save",
        "safetensors.torch.load_file",
        "safetensors.torch.save_file",
        "torch._utils._import_dotted_name",
        "torch.compile",
        "torch.load",
        "torch.save",
        "torch.serialization._get_restore_location",
        "torch.serialization.add_safe_globals",
        "torch.serialization.load",
        "torch.serialization.save",
        "torch.storage._load_from_bytes",
    }
)


def is_harmful(module: str, name: str) -> bool:
    """Whether a global is known to do harm, or part of a library through which it can."""
    full = f"{module}.{name}"
    if full in HARMLESS:
        return False
    root = full.split(".", 1)[0]
    if root in sys.stdlib_module_names or root in _OLD or full in NAMES:
        return True
    return any(full == package or full.startswith(package + ".") for package in PACKAGES)
