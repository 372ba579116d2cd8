"""The methods of `KStream` that call what is outside of the topology, or a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from typing_extensions import TypeVar

from headrace.topology.context.calls import Retry
from headrace.topology.dsl.methods.processing import Processing
from headrace.topology.dsl.steps.calls import (
    CallOptions,
    Calls,
    OnError,
    called_for_batches,
    called_for_each,
)
from headrace.topology.operators.calls.frames import Form
from headrace.topology.operators.calls.map_async import Order

if TYPE_CHECKING:
    from headrace.topology.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2", default=Any)
TIMEOUT = timedelta(seconds=5)
"""Shorter than a transaction lives by default."""


class Calling(Processing[K, V]):
    """Has functions called for many records of a stream at a time."""

    __slots__ = ()

    @overload
    def map_async(
        self,
        fn: Callable[..., Awaitable[V2]],
        *,
        with_key: bool = False,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...
    @overload
    def map_async(
        self, fn: Callable[..., V2], *, with_key: bool = False, **options: Unpack[CallOptions]
    ) -> KStream[K, V2]: ...

    def map_async(
        self,
        fn: Callable[..., Any],
        *,
        with_key: bool = False,
        concurrency: int = 100,
        timeout: timedelta = TIMEOUT,
        retry: Retry | None = None,
        order: Order = "kept",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Make another value of each by a call to the outside, many of them under way at a time.

        The calls belong to the transaction that their records are read in: their results go on in
        the order of the records, and none is under way at a commit. What is processed again after
        a failure is called for again.

        Args:
            fn: called as ``fn(value)``; a coroutine function, or a plain one, which is called in a
                thread. One with a parameter `call` is told which call it is, by a `Call` whose
                ``key`` is the same whenever the call is made again.
            with_key: call ``fn(key, value)`` instead.
            concurrency: how many calls of a task are under way at most.
            timeout: how long the calls for one record may take, with all attempts and pauses; to be
                shorter than ``producer.transaction.timeout.ms``.
            retry: how often a call that failed is made again, and when; None for never.
            order: "kept" for that of the records, "any" for that in which the calls end.
            on_error: what becomes of a record whose call failed in the end: "fail" asks the
                setting ``processing.exception.handler``, which by default stops the application,
                "skip" leaves it out, "dead_letter" writes it to the setting's dead-letter topic, a
                function is called as ``on_error(value, error)`` and returns the value.
            name: name of the node; None generates one.

        Raises:
            TopologyError: something cannot be called so, or is out of range; a name is not legal
                or is taken.

        >>> import asyncio
        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> async def price_of(item):
        ...     await asyncio.sleep(0.02)  # ask a server
        ...     return len(item)
        >>> builder = StreamsBuilder()
        >>> items = builder.stream("items", key=serdes.string, value=serdes.string)
        >>> items.map_async(price_of, concurrency=50).to("prices", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("items").send_many([("a", "tea"), ("b", "cake")])
        ...     [(record.key, record.value) for record in driver.output("prices").read_all()]
        [('a', 3), ('b', 4)]
        """
        given = Calls(fn, with_key, concurrency, timeout, retry, order, on_error, name)
        return self._stream(called_for_each(self._edge, given))

    @overload
    def map_batches(
        self,
        fn: Callable[[list[V]], list[V2]],
        *,
        as_: Literal["list"] = "list",
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def map_batches(
        self,
        fn: Callable[[Any], Any],
        *,
        as_: Form,
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, Any]: ...

    def map_batches(
        self,
        fn: Callable[[Any], Any],
        *,
        as_: Form = "list",
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Make other values of many records by one call: what models want.

        Args:
            fn: called as ``fn(values)``, returns as many values in their order: a list, or a frame
                or a column of such.
            as_: what it is given: a "list", or a table of "arrow", a frame of "pandas" or
                "polars", with a column for each name where values are dicts, and else a column
                ``value``.
            max_records: how many it is given at most.
            max_ms: for how many milliseconds values may wait for more of them, a commit aside; None
                for no longer than the records that were read together.
            name: name of the node; None generates one.

        Raises:
            TopologyError: a number is out of range, or a library is not installed; a name is not
                legal or is taken.

        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> def score(values):
        ...     return [len(value) for value in values]  # ask a model
        >>> builder = StreamsBuilder()
        >>> items = builder.stream("items", key=serdes.string, value=serdes.string)
        >>> items.map_batches(score, max_records=256).to("scores", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("items").send_many([("a", "tea"), ("b", "cake")])
        ...     [(record.key, record.value) for record in driver.output("scores").read_all()]
        [('a', 3), ('b', 4)]
        """
        made = called_for_batches(
            self._edge, fn, max_records=max_records, max_ms=max_ms, form=as_, name=name
        )
        return self._stream(made)
