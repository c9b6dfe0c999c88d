"""A slow node is found by comparing it with the others, and left out where there is another."""

import json
from dataclasses import replace

import pytest

from evaluator.launchers.cluster.nodes import slow_node_words, topology_words
from evaluator.launchers.cluster.slow_nodes import fastest, judged
from evaluator.workloads.node_test import ring
from records.machine import NodeRecord

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def tested(tmp_path):
    """What is found of nodes with these times for a product, and for the exchange of each pair."""

    def judge(products_s, exchanges_s=None):
        exchanges_s = exchanges_s or {}
        for number, product_s in enumerate(products_s):
            own = {sum(pair) - number: s for pair, s in exchanges_s.items() if number in pair}
            found = {"node_rank": number, "product_s": product_s, "exchange_s": own}
            (tmp_path / f"node{number}.json").write_text(json.dumps(found), encoding="utf-8")
        return judged([NodeRecord(name=name) for name in NAMES[: len(products_s)]], tmp_path)

    return judge


def slow(nodes):
    return {node.name: node.slow for node in nodes if node.slow}


def test_a_node_whose_products_take_longer_is_slow(tested):
    found = slow(tested([1.0, 1.02, 1.31, 0.99]))

    assert found == {"c": "matrix products take 1.31 times as long as elsewhere"}


@pytest.mark.parametrize("products_s", [[1.0], [1.0, 1.1, 0.97], [2.0, 2.0, 2.0, 2.0]])
def test_equal_nodes_are_not_slow(tested, products_s):
    assert slow(tested(products_s)) == {}


def test_of_two_nodes_the_slower_one_is_found_by_its_products(tested):
    assert list(slow(tested([1.0, 1.5]))) == ["b"]


def test_a_node_is_slow_that_exchanges_slowly_with_both_neighbours(tested):
    links = {(0, 1): 1.0, (1, 2): 2.4, (2, 3): 2.5, (0, 3): 1.0}

    found = slow(tested([1.0] * 4, links))

    assert list(found) == ["c"]
    assert found["c"].startswith("exchanges with both neighbours take 2.40 times as long as")


def test_one_slow_link_names_no_node(tested):
    links = {(0, 1): 1.0, (1, 2): 2.4, (2, 3): 1.0, (0, 3): 1.0}

    assert slow(tested([1.0] * 4, links)) == {}


def test_a_node_that_left_no_result_or_nonsense_is_not_judged(tested, tmp_path):
    (tmp_path / "node9.json").write_text('{"node_rank": 9, "product_s": 1}', encoding="utf-8")
    (tmp_path / "nodeX.json").write_text("[", encoding="utf-8")

    assert slow(tested([1.0, 1.0])) == {}


def test_a_slow_node_is_left_out_where_there_is_another(tested):
    nodes = fastest(tested([1.4, 1.0, 1.0]), 2)

    assert [node.name for node in nodes if node.used] == ["b", "c"]
    assert slow_node_words(nodes) == (
        "node a is slow: matrix products take 1.40 times as long as elsewhere; it is left out",
    )


def test_a_slow_node_that_is_needed_is_used_and_named(tested):
    nodes = fastest(tested([1.4, 1.0, 1.0]), 3)

    assert all(node.used for node in nodes)
    assert slow_node_words(nodes) == (
        "node a is slow: matrix products take 1.40 times as long as elsewhere; it is used, as "
        "there is no other: ask for one more with [cluster] nodes",
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_each_node_exchanges_with_two_neighbours_and_one_at_a_time(count):
    turns = ring(count)

    for turn in turns:
        busy = [node for pair in turn for node in pair]
        assert len(set(busy)) == len(busy)
    met = [node for turn in turns for pair in turn for node in pair]
    expected = {1: 0, 2: 1}.get(count, 2)
    assert [met.count(node) for node in range(count)] == [expected] * count


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], None),
        ([{}], "1 node"),
        (
            [{"switch": "s1"}, {"switch": "s2"}, {"switch": "s1"}],
            "3 nodes, 2 on switch s1, 1 on switch s2",
        ),
        (
            [{"gpus": ("H100",) * 8}] * 2,
            "2 nodes, each with 8 x H100",
        ),
        ([{"switch": "s1"}, {"switch": "s9", "used": False}], "1 node, 1 on switch s1"),
    ],
)
def test_how_nodes_are_connected_is_said_in_words(nodes, words):
    records = [replace(NodeRecord(name=str(n)), **facts) for n, facts in enumerate(nodes)]

    assert topology_words(records) == words
