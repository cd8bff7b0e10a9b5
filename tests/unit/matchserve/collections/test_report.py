from __future__ import annotations

import numpy as np

from matchserve.collections.report import (
    ModelSummary,
    Report,
    component_labels,
    summary,
    view_graph,
)


def naive_labels(count: int, edges: np.ndarray) -> list[int]:
    labels = list(range(count))
    for _ in range(count):
        for first, second in edges[:, :2].tolist():
            smallest = min(labels[first], labels[second])
            labels[first] = labels[second] = smallest
    return labels


def test_components_equal_the_slow_way() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 5, 40, 100):
        for edge_count in (0, count // 2, count, 3 * count):
            edges = rng.integers(0, count, (edge_count, 3))
            assert component_labels(count, edges).tolist() == naive_labels(count, edges)


def test_a_long_chain_is_one_component() -> None:
    edges = np.stack([np.arange(999), np.arange(1, 1000), np.ones(999, np.int64)], axis=1)
    shuffled = np.random.default_rng(1).permutation(edges)
    assert not component_labels(1000, shuffled).any()


def test_the_view_graph_has_verified_pairs_only() -> None:
    names = {10: "a", 7: "b", 30: "c", 2: "d"}
    pairs = np.array([[7, 10, 1, 50, 40, 1], [10, 30, 1, 50, 20, 0], [2, 7, 1, -1, -1, -1]])
    graph = view_graph(names, pairs)
    assert graph.edges.tolist() == [[1, 0, 40]]
    assert graph.components == [["a", "b"]]
    assert graph.alone == ["c", "d"]


def test_images_without_a_place_in_a_model_are_named() -> None:
    names = dict(enumerate("abcde"))
    pairs = np.array([[0, 1, 1, 50, 40, 1], [1, 2, 1, 50, 40, 1], [2, 3, 1, 50, 40, 1]])
    model = ModelSummary(frozenset("ab"), 2, 100, 200, 2.0, 0.5)
    report = Report(5, {}, 10, 10, {}, view_graph(names, pairs), [model])
    assert report.fields()["unregistered"] == ["c", "d", "e"]
    assert "1 without a verified pair: e" in summary(report)
    assert "in no model, although they have verified pairs: c, d" in summary(report)
    unmapped = Report(5, {}, 10, 10, {}, view_graph(names, pairs))
    assert unmapped.fields()["unregistered"] == []
