"""Lets random tests end at their first failure: which example is the smallest does not matter."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "first-failure", phases=[Phase.explicit, Phase.generate], database=None, deadline=None
)
settings.load_profile("first-failure")
