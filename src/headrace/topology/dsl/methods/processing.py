"""The methods of `KStream` that hand its records to the user's own processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack, overload

from typing_extensions import TypeVar

from headrace.topology.dsl.methods.fewer_records import FewerRecords
from headrace.topology.dsl.steps.process_step import AnyStore, ProcessorOptions, process_step
from headrace.topology.processors.processors import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    Record,
)

if TYPE_CHECKING:
    from headrace.topology.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2", default=Any)
V2 = TypeVar("V2", default=Any)
"""Nobody knows what a lambda forwards: then they are Any."""


class Processing(FewerRecords[K, V]):
    """Has processors of one's own take the records of a stream."""

    __slots__ = ()

    @overload
    def process(
        self,
        supplier: Callable[[], Processor[K, V, K2, V2]],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K2, V2]: ...
    @overload
    def process(
        self,
        supplier: Callable[[Record[K, V], ProcessorContext[K2, V2]], object],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K2, V2]: ...

    def process(
        self,
        supplier: Callable[..., Any],
        *,
        stores: Iterable[AnyStore] = (),
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Have a processor of one's own take each record; what it forwards is the result.

        It may change keys, so what needs equal keys together is repartitioned behind it.

        Args:
            supplier: makes a new processor in each call, one for each task; a class will do. Or a
                function that is called as ``function(record, context)``. One with an attribute
                `stores` brings those and is connected with them.
            stores: what the processor works with: names of stores, those of tables included, or
                what describes them, which are added.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the supplier makes no processors, or the same one twice; a name is not
                legal or is taken.

        >>> from headrace import Processor, Record, Stores, TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> class Numbered(Processor[str, str, str, str]):
        ...     stores = [Stores.key_value("lines-of", key=serdes.string, value=serdes.long)]
        ...     def init(self, context):
        ...         self.context = context
        ...         self.lines_of = context.store("lines-of")
        ...     def process(self, record):
        ...         number = (self.lines_of.get(record.key) or 0) + 1
        ...         self.lines_of.put(record.key, number)
        ...         self.context.forward(record.with_value(f"{number}: {record.value}"))
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", key=serdes.string, value=serdes.string)
        >>> lines.process(Numbered, name="number").to("out", key=serdes.string, value=serdes.string)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("lines").send_many([("a", "to be"), ("b", "or"), ("a", "not")])
        ...     [(record.key, record.value) for record in driver.output("out").read_all()]
        [('a', '1: to be'), ('b', '1: or'), ('a', '2: not')]
        """
        return self._stream(process_step(self._edge, supplier, stores, name, fixed_key=False))

    @overload
    def process_values(
        self,
        supplier: Callable[[], FixedKeyProcessor[K, V, V2]],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K, V2]: ...
    @overload
    def process_values(
        self,
        supplier: Callable[[FixedKeyRecord[K, V], FixedKeyProcessorContext[K, V2]], object],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K, V2]: ...

    def process_values(
        self,
        supplier: Callable[..., Any],
        *,
        stores: Iterable[AnyStore] = (),
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Have a processor of one's own take each record, which leaves keys as they are.

        So nothing is repartitioned behind it. See `process` for the rest.

        Args:
            supplier: makes a new `FixedKeyProcessor` in each call, or is a function that is called
                as ``function(record, context)``; records are `FixedKeyRecord`.
            stores: what the processor works with.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the supplier makes no processors, or the same one twice; a name is not
                legal or is taken.

        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> def where(record, context):
        ...     context.forward(record.with_value(context.record_metadata.offset))
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", key=serdes.string, value=serdes.string)
        >>> lines.process_values(where).to("out", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("lines").send_many([("a", "to be"), ("b", "or")])
        ...     [(record.key, record.value) for record in driver.output("out").read_all()]
        [('a', 0), ('b', 1)]
        """
        return self._stream(process_step(self._edge, supplier, stores, name, fixed_key=True))
