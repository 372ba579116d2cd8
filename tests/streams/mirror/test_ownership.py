"""Of several processes with a mirror's name the last one that has begun goes on, and it alone."""

from __future__ import annotations

import pytest

from headrace.streams.errors import IdentityError
from headrace.streams.mirror.names import NameClaim


def test_the_one_that_began_later_goes_on_and_is_not_driven_out_again() -> None:
    first, second = NameClaim("m"), NameClaim("m")
    for one, owner in ((first, None), (second, first.id)):
        one.require(owner)  # before it fences the other
        one.require(owner)  # and behind that
        one.has_begun = True
        one.require(one.id)
    with pytest.raises(IdentityError):
        first.require(second.id)
    second.require(second.id)
    with pytest.raises(IdentityError):
        second.require(first.id)


def test_one_that_was_overtaken_as_it_began_ends() -> None:
    one = NameClaim("m")
    one.require("x")
    with pytest.raises(IdentityError):
        one.require("y")


def test_one_that_does_not_know_whether_its_name_is_written_goes_on() -> None:
    one = NameClaim("m")
    one.require("x")
    one.require("x")
    one.require(one.id)
