"""Puts the builders on the path, and runs the attacks of a module together in one watched process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import harness  # noqa: E402 - needs the path


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcome of every selected case of this module, by its id."""
    items = [item for item in request.session.items if item.module is request.module]
    cases = {item.callspec.params["case"] for item in items if "case" in getattr(item, "callspec", Params).params}
    return harness.run(sorted(cases, key=str), tmp_path_factory.mktemp(request.module.__name__))


class Params:
    params: dict[str, object] = {}
