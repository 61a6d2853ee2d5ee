"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# A property is about values: a busy machine must not make it fail.
settings.register_profile("depickle", deadline=None, print_blob=False)
settings.load_profile("depickle")
