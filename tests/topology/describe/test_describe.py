"""`describe` beyond what Kafka Streams prints, and the orders that it takes over from Java."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.describe.describe import TreeSet, hash_order
from headrace.topology.dsl.builder import StreamsBuilder


def test_describe_with_code_adds_the_source_of_each_sub_topology() -> None:
    b = StreamsBuilder()
    words = b.stream("in", value=serdes.string).flat_map_values(str.split, name="split")
    words.group_by(lambda _, word: word, name="by-word").count(name="count")
    plain = b.build().describe()
    text = b.build().describe(code=True)
    assert text.replace(", combines: count", "").startswith(plain)
    code = text.removeprefix(plain)
    assert code.count("def bind(") == 2
    for name in ("split", "by-word", "count"):
        assert f"# {name}\n" in code


def test_an_object_that_chooses_topics_is_shown_by_its_class() -> None:
    class Chooser:
        def __call__(self, key: object, value: object) -> str:
            return "out"

    b = StreamsBuilder()
    b.stream("in").to(Chooser())
    assert "(extractor class: Chooser)" in b.build().describe()


def test_hash_order_is_that_of_java() -> None:
    """What a HashSet of JDK 17 returned for these; "Aa" and "BB" have one hash."""
    assert hash_order(["BB", "Aa", "C#"]) == ["BB", "Aa", "C#"]
    assert hash_order(["Aa", "BB", "b", "a"]) == ["Aa", "BB", "a", "b"]
    grown = ["name6", "name5", "name4", "name3", "name11", "name9"]
    grown += ["name10", "name8", "name7", "name2", "name1", "name0"]
    assert hash_order(f"name{i}" for i in range(12)) == grown
    assert hash_order(grown, sized=True) == grown
    assert hash_order([f"t{i}" for i in range(9, 0, -1)] + ["a"], sized=True) == [
        *("t4", "t5", "a", "t6", "t7", "t8", "t9", "t1", "t2", "t3")
    ]


@given(st.lists(st.integers()))
def test_a_tree_set_with_a_steady_comparator_is_sorted_and_distinct(numbers: list[int]) -> None:
    tree: TreeSet[int] = TreeSet(lambda a, b: (a > b) - (a < b))
    for number in numbers:
        tree.add(number)
    assert list(tree) == sorted(set(numbers))
