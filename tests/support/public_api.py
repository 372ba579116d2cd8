"""Classes and functions that a user of the package can reach from its public names.

A class is public if a public module exports it, if it is a base of a public class, or if a public
function or method returns it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = (
    "headrace",
    "headrace.errors",
    "headrace.simulation",
    "headrace.sources",
    "headrace.spark_bridge",
    "headrace.streams",
    "headrace.streams.errors",
    "headrace.streams.simulation",
    "headrace.testing",
    "headrace.topology",
    "headrace.topology.errors",
    "headrace.topology.serdes",
    "headrace.topology.serdes.avro",
)


def exports(module: ModuleType) -> Iterator[Any]:
    """The classes and functions that a module exports."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield value


def public_objects() -> set[Any]:
    """All public classes and module-level functions of the package."""
    found: set[Any] = set()
    waiting = [value for name in MODULES for value in exports(import_module(name))]
    while waiting:
        value = waiting.pop()
        if value in found or not value.__module__.startswith("headrace"):
            continue
        found.add(value)
        if inspect.isclass(value):
            waiting += [base for base in value.__mro__ if base not in found]
            for method in public_methods(value).values():
                waiting += returned(method)
        else:
            waiting += returned(value)
    return found


def public_methods(of: type) -> dict[str, Callable[..., Any]]:
    """The methods and properties that a class itself defines, without private and special ones."""
    methods = {}
    for name, value in vars(of).items():
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if not name.startswith("_") and inspect.isfunction(value):
            methods[name] = value
    return methods


def returned(function: Callable[..., Any]) -> list[type]:
    """The public classes in a function's return annotation."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    if not isinstance(annotation, str):
        return []
    names = {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
    dotted = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(annotation))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    scope = vars(sys.modules[function.__module__])
    values = [scope.get(name) for name in names]
    values += [getattr(scope.get(of), name, None) for of, name in dotted]
    classes = [value for value in values if inspect.isclass(value)]
    return [one for one in classes if not one.__name__.startswith("_")]
