"""Loading catalogs of Iceberg, so that no answer is waited for without end.

pyiceberg's client of REST catalogs gives its requests no time-out, and has no setting for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def load_bounded(given: str | Mapping[str, str], timeout_s: float) -> Any:
    """Load a catalog; one that is asked over HTTP is waited for as long as that, each time.

    Args:
        given: its name in pyiceberg's configuration, or its properties.
        timeout_s: for a connection, and for the silence in an answer.

    Raises:
        ValueError: what is given is no catalog, or no header can hold its token.
    """
    from pyiceberg.catalog import CatalogType, infer_catalog_type, load_catalog
    from pyiceberg.utils.config import Config, merge_config

    name: str | None = given if isinstance(given, str) else None
    properties: dict[str, Any] = {} if isinstance(given, str) else dict(given)
    name = name or properties.pop("name", None)
    config = Config()
    named = name or config.get_default_catalog_name()
    whole: Any = merge_config(config.get_catalog_config(named) or {}, properties)
    kind = whole.get("type") or None
    if "py-catalog-impl" not in whole and isinstance(whole.get("uri"), str):
        kind = kind or infer_catalog_type(named, whole)
        if kind in (CatalogType.REST, CatalogType.REST.value):
            return _bounded(timeout_s)(named, **_without_line_ends(whole))
    return load_catalog(name, **properties)


def _without_line_ends(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Secrets without the line end of their file; else an error of requests would show them."""
    found = dict(properties)
    for name in ("token", "credential"):
        if isinstance(found.get(name), str):
            found[name] = found[name].strip()
            if not found[name].isprintable():
                raise ValueError(f"its {name} has line ends or other characters that are no text")
    return found


def _bounded(timeout_s: float) -> Any:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Response
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        """Sends as it does where nobody says how long to wait."""

        def send(self, *given: Any, **options: Any) -> Response:
            if options.get("timeout") is None:
                options["timeout"] = timeout_s
            return super().send(*given, **options)

    class BoundedRestCatalog(RestCatalog):  # type: ignore[misc]
        """The catalog, with such sessions."""

        def _create_session(self) -> Any:
            session = super()._create_session()
            for prefix, adapter in list(session.adapters.items()):
                if type(adapter) is HTTPAdapter:  # one that signs requests stays as it is
                    session.mount(prefix, Adapter())
            return session

    return BoundedRestCatalog
