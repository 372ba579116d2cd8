"""What `headrace run` accepts as the name of an application."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.streams import TopologyTestDriver
from headrace.streams.config.loading import ApplicationError
from headrace.streams.config.settings import given_by
from headrace.streams.errors import ConfigError
from headrace.streams.supervisor.app_loader import load_app
from headrace.topology.errors import TopologyError

APP = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
app = KafkaStreams(
    builder.build(), {"application.id": "loaded", "bootstrap.servers": "localhost:9092"}
)
def make():
    return app
def make_with(argument):
    return app
def make_none():
    return None
def make_broken():
    return make_with()
class holder:
    app = app
number = 5
"""

Save = Callable[[str, str], None]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Save]:
    """Save files in a directory of its own, which is the current one; forget their modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def save_file(name: str, code: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)

    yield save_file
    for name in set(sys.modules) - before:
        del sys.modules[name]


LEFT = APP.replace('{"application.id": "loaded", "bootstrap.servers": "localhost:9092"}', "{}")
"""Its code says nothing that differs from one place to the next."""


@pytest.mark.parametrize("target", ["my_app:app", "my_app:make", "my_app.py:app"])
def test_required_settings_may_be_left_to_who_starts_it(save: Save, target: str) -> None:
    save("my_app.py", LEFT)
    beside = {"application.id": "given", "bootstrap.servers": "kafka:9092", "poll.ms": "7"}
    app = load_app(target, given_by(beside, "--set"))
    assert app.config.application_id == "given"
    assert app.config.bootstrap_servers == "kafka:9092"


def test_required_settings_of_the_program_are_its_own(save: Save) -> None:
    save("my_app.py", APP)
    app = load_app("my_app:app", {"application.id": "given"})
    assert app.config.application_id == "loaded", "what is given is laid over it later"


def test_a_required_setting_that_nobody_gives_is_named_with_who_may(save: Save) -> None:
    save("my_app.py", LEFT)
    with pytest.raises(ConfigError, match=r"application\.id is required") as caught:
        load_app("my_app:app", {"bootstrap.servers": "kafka:9092"})
    assert "--set application.id=" in str(caught.value)
    assert "bootstrap.servers" not in str(caught.value)


def test_all_that_is_wrong_with_what_is_given_is_said_with_its_place(save: Save) -> None:
    save("my_app.py", LEFT)
    beside = {"application.id": "given", "bootstrap.servers": "kafka", "poll.ms": "x"}
    with pytest.raises(ConfigError, match=r"bootstrap.servers \(from HEADRACE_X\)") as caught:
        load_app("my_app:app", given_by(beside, "HEADRACE_X"))
    assert "poll.ms (from HEADRACE_X) must be" in str(caught.value)


@pytest.mark.parametrize(
    "target",
    ["my_app:app", "my_app:make", "my_app:holder.app", "my_app.py:app", "./my_app.py:make"],
)
def test_an_application_is_found_by_module_or_file(target: str, save: Save) -> None:
    save("my_app.py", APP)
    assert load_app(target).config.application_id == "loaded"


def test_a_module_in_a_package_of_the_current_directory_is_found(save: Save) -> None:
    save("pkg/__init__.py", "")
    save("pkg/steps.py", "name = 'in'")
    save("pkg/my_app.py", f"from .steps import name\n{APP}")
    assert load_app("pkg.my_app:app").config.application_id == "loaded"


def test_a_file_elsewhere_imports_what_is_beside_it(save: Save) -> None:
    save("deep/steps_beside.py", "name = 'in'")
    save("deep/my_app.py", f"from steps_beside import name\n{APP}")
    assert load_app("deep/my_app.py:app").config.application_id == "loaded"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("my_app", "does not name an application"),
        (":app", "does not name an application"),
        ("my_app:", "does not name an application"),
        ("no_app:app", "no module 'no_app' is installed"),
        ("no_pkg.my_app:app", "no module 'no_pkg.my_app' is installed"),
        ("no_app.py:app", "file no_app.py does not exist"),
        ("my_app:missing", "has no attribute 'missing'"),
        ("my_app:number", "is a int, not a KafkaStreams"),
        ("my_app:make_none", "returned a NoneType, not a KafkaStreams"),
        ("my_app:make_with", "cannot be called without arguments"),
    ],
)
def test_what_is_no_application_is_said_in_one_error(target: str, said: str, save: Save) -> None:
    save("my_app.py", APP)
    with pytest.raises(ApplicationError, match=said):
        load_app(target)


def test_an_error_inside_of_a_function_is_not_taken_for_a_wrong_signature(save: Save) -> None:
    save("my_app.py", APP)
    with pytest.raises(TypeError, match="argument"):
        load_app("my_app:make_broken")


@pytest.mark.parametrize("target", ["broken_app:app", "broken_app.py:app"])
@pytest.mark.parametrize("code", ["1 / 0", "import no_such_module", "def f(:"])
def test_code_that_cannot_be_imported_is_named(target: str, code: str, save: Save) -> None:
    save("broken_app.py", f"\n{code}\n")
    with pytest.raises(ApplicationError, match=r"broken_app(\.py)? cannot be imported: \w+"):
        load_app(target)


@pytest.mark.parametrize("target", ["ending_app:app", "ending_app.py:app"])
def test_code_that_runs_a_program_when_it_is_imported_is_told_so(target: str, save: Save) -> None:
    save("ending_app.py", "import sys\nsys.exit(7)")
    with pytest.raises(ApplicationError, match=r"status 7.*__main__"):
        load_app(target)


def test_wrong_settings_are_reported_as_such(save: Save) -> None:
    save("my_app.py", APP.replace("bootstrap.servers", "bootstrap.server"))
    with pytest.raises(ConfigError, match=r"did you mean bootstrap\.servers"):
        load_app("my_app:app")


def test_a_file_elsewhere_imports_from_its_own_directory_and_then_the_current_one(
    save: Save,
) -> None:
    save("shared/__init__.py", "")
    save("shared/names.py", "NAME = 'of the current directory'")
    save("helpers.py", "NAME = 'of the current directory'")
    save("jobs/helpers.py", "NAME = 'beside it'")
    code = "import helpers, shared.names\nnames = (helpers.NAME, shared.names.NAME)\n"
    save("jobs/the_job.py", code + APP)
    load_app("jobs/the_job.py:app")
    assert sys.modules["the_job"].names == ("beside it", "of the current directory")


@pytest.mark.parametrize("target", ["token.py:app", "token:app"])
def test_an_application_named_like_a_module_of_python_is_told_so(target: str, save: Save) -> None:
    save("token.py", APP)
    with pytest.raises(ApplicationError, match="a module of Python itself"):
        load_app(target)


def test_an_application_s_directory_comes_behind_python_s_own_and_before_what_is_installed(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    save("my_app.py", APP)
    load_app("my_app:app")
    at = sys.path.index(str(tmp_path))
    assert at > sys.path.index(sysconfig.get_path("stdlib"))
    assert at < min(i for i, place in enumerate(sys.path) if place.endswith("site-packages"))


@pytest.mark.parametrize("call", ["app.run()", "app.start()", "with app: app.run()"])
def test_a_module_that_runs_its_application_when_it_is_imported_is_told_so(
    call: str, save: Save
) -> None:
    save("my_app.py", f"{APP}\n{call}\n")
    with pytest.raises(ApplicationError, match=r"was started while my_app:app was imported"):
        load_app("my_app:app")
    save("other_app.py", f"{APP}\ndef make():\n    app.run()\n    return app")
    with pytest.raises(ApplicationError, match="__main__"):
        load_app("other_app:make")


@pytest.mark.parametrize("thing", ["builder", "None", "KafkaStreams"])
def test_a_topology_that_is_not_built_is_told_so(thing: str, save: Save) -> None:
    save("my_app.py", APP.replace("builder.build(),", f"{thing},"))
    with pytest.raises(TopologyError, match=r"a topology is required, not (a|None)") as raised:
        load_app("my_app:app")
    assert ("write builder.build()" in str(raised.value)) is (thing == "builder")
    with pytest.raises(TopologyError, match="a topology is required"):
        TopologyTestDriver(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["broken_app:app", "broken_app.py:app", "outer_app:app"])
def test_what_is_no_python_is_named_by_file_and_line_alone(
    target: str, save: Save, tmp_path: Path
) -> None:
    save("broken_app.py", "x = 1\ndef f(:\n    pass\n")
    save("outer_app.py", "import broken_app\n")
    with pytest.raises(ApplicationError) as raised:
        load_app(target)
    said = str(raised.value)
    assert said.count(f"{tmp_path / 'broken_app.py'}:2") == 1
    assert "frozen" not in said
    assert "(broken_app.py, line 2)" not in said


@pytest.mark.parametrize("code", ["raise SystemExit", "raise SystemExit(3)", "sys.exit('no town')"])
def test_a_function_that_ends_the_interpreter_is_told_so(code: str, save: Save) -> None:
    save("my_app.py", f"import sys\ndef make():\n    {code}\n")
    with pytest.raises(ApplicationError, match=r"my_app:make ends .* \(status (0|3|no town)\)"):
        load_app("my_app:make")


@pytest.mark.parametrize("target", ["shadowing_app.py:app", "shadowing_app:app"])
@pytest.mark.parametrize(
    ("imported", "mine"),
    [
        ("from token import secret_of_mine", "token.py"),
        ("import token; token.secret_of_mine()", "token.py"),
        ("import calendar.holidays", "calendar/__init__.py"),
        ("from queue import jobs", "queue.py"),
    ],
)
def test_a_module_that_is_called_as_one_of_pythons_own_is_named(
    save: Save, target: str, imported: str, mine: str
) -> None:
    Path(mine).parent.mkdir(exist_ok=True)
    save(mine, "secret_of_mine = 5\n")
    save("shadowing_app.py", f"{imported}\n{APP}")
    name = mine.partition("/")[0].removesuffix(".py")
    said = rf"Rename .*{name}.*, because {name} is a module of Python itself, which prec"
    with pytest.raises(ApplicationError, match=said):
        load_app(target)


def test_a_name_that_python_alone_has_is_no_collision(save: Save) -> None:
    save("plain_app.py", f"from token import no_such_name\n{APP}")
    with pytest.raises(ApplicationError, match=r"cannot import name .*\. Correct the code"):
        load_app("plain_app.py:app")
