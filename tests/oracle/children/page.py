"""Run the Python blocks of a page one after the other, in a folder of their own, as one program.

In: `{"page": path, "folder": path}`. Out: how many there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
job = json.load(sys.stdin)
blocks = re.findall(r"^```python\n(.*?)^```$", Path(job["page"]).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
os.chdir(job["folder"])
space: dict[str, object] = {}
with contextlib.redirect_stdout(sys.stderr):
    for block in blocks:
        exec(compile(block, job["page"], "exec"), space)
print(json.dumps(len(blocks)))
