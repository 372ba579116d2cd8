"""Loader of the application that `headrace run` names: ``module:app`` or ``file.py:app``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from headrace.streams.config.loading import ApplicationError, loading_of
from headrace.streams.errors import StreamsError
from headrace.streams.tasks.failures import is_user_code
from headrace.topology.errors import TopologyError

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


# Import path of an application: after the standard library, before installed packages.
#
# Python itself puts the current directory first, so that a user's ``token.py`` would replace the
# standard module of that name.


def add_import_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(_after_standard_library(), str(directory))


def standard_module(name: str) -> bool:
    """Return whether the standard library has a module of this name.

    >>> standard_module("token"), standard_module("word_count")
    (True, False)
    """
    return name in sys.stdlib_module_names


def _after_standard_library() -> int:
    standard_paths = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")}
    standard_paths |= {location / "lib-dynload" for location in standard_paths}
    last = [index for index, location in enumerate(sys.path) if Path(location) in standard_paths]
    return max(last, default=len(sys.path) - 1) + 1


_NOTHING: Mapping[str, Any] = MappingProxyType({})
WRONG_CODE = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(NameError, SyntaxError, TypeError, ValueError),
)
"""Errors that an application's function raises again at each call, unless they are an OSError.

A RuntimeError can be temporary, such as a service that does not answer, so the call is repeated.
"""
_AN_APP = "a KafkaStreams, or a function without arguments that returns a KafkaStreams"


def load_app(target: str, beside: Mapping[str, Any] = _NOTHING) -> KafkaStreams:
    """Return the application of ``package.module:attribute`` or ``path/to/file.py:attribute``.

    The attribute is a `KafkaStreams`, or a function without arguments that returns an instance. The
    current directory is on the import path after the standard library, preceded by the directory of
    a named file. `beside` overrides its settings; it is applied on creation if its own settings
    lack required settings.
    """
    module, path = _split(target, "an application", "module:attribute, such as word_count:app")
    with loading_of(target, beside):
        return _as_app(_attribute(module, path, _AN_APP), target)


def load_function(target: str) -> Callable[[], Any]:
    """Import a function without arguments, with the import path of applications."""
    module, path = _split(target, "a function", "module:function or path/to/file.py:function")
    function = _attribute(module, path, "a function without arguments")
    if not callable(function):
        raise ApplicationError(
            f"{target} is a {type(function).__name__}. Name a function without arguments"
        )
    made: Callable[[], Any] = function
    return made


def _split(target: str, what: str, how: str) -> tuple[str, str]:
    module, colon, path = target.rpartition(":")
    if not (module and colon and path):
        raise ApplicationError(f"{target!r} does not name {what}. Write {how}")
    return module, path


def _attribute(location: str, path: str, what: str) -> object:
    module = _import(location)
    attribute: object = module
    for name in path.split("."):
        if not hasattr(attribute, name):
            raise ApplicationError(
                f"{location}{_module_note(location)} has no attribute {path!r}; it must be {what}"
            )
        attribute = getattr(attribute, name)
    return attribute


def _module_note(location: str) -> str:
    is_python_s = standard_module(location.partition(".")[0])
    return ", which is a module of Python itself (rename your module); it" if is_python_s else ""


def _as_app(named: object, target: str) -> KafkaStreams:
    from headrace.streams.app import KafkaStreams

    made = named
    if callable(named):
        try:
            made = named()
        except SystemExit as error:
            raise ApplicationError(
                f"{target} ends the interpreter when it is called (status {_status(error)}). "
                "Return a KafkaStreams, or raise an exception with the reason"
            ) from error
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # raised inside the function
            raise ApplicationError(
                f"{target} cannot be called without arguments ({error}). Name {_AN_APP}"
            ) from error
    if not isinstance(made, KafkaStreams):
        what = "returned" if callable(named) else "is"
        raise ApplicationError(
            f"{target} {what} a {type(made).__name__}, not a KafkaStreams. Name {_AN_APP}"
        )
    return made


def _import(location: str) -> ModuleType:
    if location.endswith(".py") or os.sep in location:
        return _import_file(Path(location))
    add_import_path(Path.cwd())
    try:
        return importlib.import_module(location)
    except SystemExit as error:
        raise _ends_the_interpreter(location, error) from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{location}.".startswith(f"{error.name}."):
            raise _broken(location, error) from error
        raise ApplicationError(
            f"no module {location!r} is installed or in {Path.cwd()}. Start in its directory, or "
            "name the file: path/to/file.py:app"
        ) from error
    except (StreamsError, TopologyError):
        raise
    except Exception as error:
        raise _broken(location, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ApplicationError(f"file {path} does not exist in {Path.cwd()}")
    # The directory that is added last precedes the other.
    add_import_path(Path.cwd())
    add_import_path(path.parent.absolute())
    if standard_module(path.stem):
        raise ApplicationError(
            f"{path} has the name of a module of Python itself, which it would replace. Rename the "
            "file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ApplicationError(f"{path} is not a Python file. Its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise _ends_the_interpreter(str(path), error) from error
    except (StreamsError, TopologyError):
        raise
    except Exception as error:
        raise _broken(str(path), error) from error
    return module


def _ends_the_interpreter(location: str, error: SystemExit) -> ApplicationError:
    return ApplicationError(
        f"{location} ends the interpreter when it is imported (status {_status(error)}). Move the "
        'code of the program under: if __name__ == "__main__":'
    )


def _status(error: SystemExit) -> object:
    """Return the exit status of a SystemExit; a text is the user's own message."""
    return 0 if error.code is None else error.code


def failed_call(target: str, error: Exception) -> ApplicationError:
    """Return the error for an application's function that raised."""
    return _broken(target, error, "called")


def _broken(location: str, error: Exception, verb: str = "imported") -> ApplicationError:
    """Return the error for a failed import; its text quotes no record, as none was read yet."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if is_user_code(frame.filename)] or [
        frame for frame in every if not frame.filename.startswith("<frozen")
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    reason: object = error
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        reason, line = error.msg, "" if error.lineno is None else f":{error.lineno}"
        where = f" at {error.filename}{line}"  # code that never ran, so no frame contains it
    what = _shadowed(error, location) or "Correct the code"
    return ApplicationError(
        f"{location} cannot be {verb}: {type(error).__name__}: {reason}{where}. {what}"
    )


def _shadowed(error: Exception, location: str) -> str | None:
    """Return advice if a standard module was imported in place of the user's module."""
    name = None
    if isinstance(error, ImportError):
        name = error.name
    elif isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        name = error.obj.__name__
    top = (name or "").partition(".")[0]
    if not standard_module(top):
        return None
    for directory in (Path(location).absolute().parent, Path.cwd()):
        for mine in (directory / f"{top}.py", directory / top):
            if mine.exists():
                return (
                    f"Rename {mine}, because {top} is a module of Python itself, which precedes it"
                )
    return None
