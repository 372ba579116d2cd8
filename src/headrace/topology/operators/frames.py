"""Forms in which a function receives the values of a batch: a list or a data frame.

If the values are dicts, a frame has a column for each name, else a column ``value``. A library is
imported only when a batch in its form is created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from headrace.topology.errors import NoValuesError, TopologyError, type_of

Form = Literal["list", "arrow", "pandas", "polars"]
COLUMN = "value"


@dataclass(frozen=True, slots=True)
class FormConversion:
    """Conversion of values to a form and back; `library` is the module that it requires."""

    from_values: Callable[[list[Any]], Any]
    to_values: Callable[[Any], Sequence[Any]]
    library: str | None = None


def require_library(form: Form) -> None:
    library = FORMS[form].library
    if library is not None and find_spec(library) is None:
        raise TopologyError(
            f"as_={form!r} requires {library}, which is not installed. Run pip install {library}"
        )


def _are_dicts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _as_rows(values: list[Any]) -> list[dict[str, Any]]:
    return values if _are_dicts(values) else [{COLUMN: value} for value in values]


def _from_list(result: Any) -> Sequence[Any]:
    """Return the values of a list, or of an object such as a numpy array that converts to it."""
    if isinstance(result, (list, tuple)):
        return result
    to_list = getattr(result, "tolist", None) or getattr(result, "to_pylist", None)
    if callable(to_list):
        values = to_list()
        if isinstance(values, list):
            return values
    raise NoValuesError(type_of(result))


def _values_of_rows(rows: list[dict[str, Any]]) -> Sequence[Any]:
    if rows and list(rows[0]) == [COLUMN]:
        return [row[COLUMN] for row in rows]
    return rows


def _to_arrow(values: list[Any]) -> Any:
    return import_module("pyarrow").Table.from_pylist(_as_rows(values))


def _from_arrow(result: Any) -> Sequence[Any]:
    if hasattr(result, "column_names"):  # a table or a record batch
        return _values_of_rows(result.to_pylist())
    return _from_list(result)


def _to_pandas(values: list[Any]) -> Any:
    return import_module("pandas").DataFrame(_as_rows(values))


def _from_pandas(result: Any) -> Sequence[Any]:
    if hasattr(result, "to_dict") and hasattr(result, "columns"):
        return _values_of_rows(result.to_dict("records"))
    return _from_list(result)


def _to_polars(values: list[Any]) -> Any:
    return import_module("polars").DataFrame(_as_rows(values))


def _from_polars(result: Any) -> Sequence[Any]:
    if hasattr(result, "to_dicts"):
        return _values_of_rows(result.to_dicts())
    to_list = getattr(result, "to_list", None)
    return to_list() if callable(to_list) else _from_list(result)


FORMS: dict[Form, FormConversion] = {
    "list": FormConversion(list, _from_list),
    "arrow": FormConversion(_to_arrow, _from_arrow, "pyarrow"),
    "pandas": FormConversion(_to_pandas, _from_pandas, "pandas"),
    "polars": FormConversion(_to_polars, _from_polars, "polars"),
}
