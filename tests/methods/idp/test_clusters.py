"""tf-idf by hand, and k-means against all divisions of few points."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from budwood.methods.idp.clusters import cluster_texts, k_means, tf_idf

KINDS = {
    "sea": "the ship sailed over the sea and the sailor saw waves near the harbour",
    "law": "the court heard the judge and the lawyer read the statute to the jury",
    "food": "the cook baked bread with flour and butter in the warm kitchen oven",
}


def texts(each: int = 6) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    made, kinds = [], []
    for _ in range(each):
        for kind, words in KINDS.items():
            made.append(" ".join(rng.permutation(words.split())[:9]))
            kinds.append(kind)
    return made, kinds


def test_vectors_are_those_of_the_formula():
    vectors, words = tf_idf(["apple apple pear", "pear plum", "pear"])
    assert words == ["pear", "apple", "plum"]  # most texts first, then by name
    idf = {word: math.log(4 / (1 + df)) + 1 for word, df in {"pear": 3, "apple": 1, "plum": 1}.items()}
    first = np.array([idf["pear"], (1 + math.log(2)) * idf["apple"], 0])
    np.testing.assert_allclose(vectors[0], first / np.linalg.norm(first))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)


def test_a_text_without_words_is_at_the_origin_and_breaks_nothing():
    vectors, _ = tf_idf(["123 --", "a word here"])
    assert not vectors[0].any() and np.isfinite(vectors).all()


def test_finds_the_best_of_all_divisions():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(8, 2)) + np.repeat([[0, 0], [4, 0]], 4, axis=0)

    def distance(labels: tuple[int, ...]) -> float:
        parts = [points[np.array(labels) == k] for k in (0, 1)]
        return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts if len(part))

    best = min(itertools.product((0, 1), repeat=8), key=distance)
    assert distance(tuple(k_means(points, 2, np.random.default_rng(0)))) == pytest.approx(distance(best))


def test_kinds_of_text_are_told_apart_and_named_by_their_words():
    made, kinds = texts()
    found = cluster_texts(made, 3, seed=0)
    for label in range(3):
        members = {kind for kind, of in zip(kinds, found.labels) if of == label}
        assert len(members) == 1
        assert set(found.words[label]) <= set(KINDS[members.pop()].split())
    assert np.bincount(found.labels).tolist() == sorted(np.bincount(found.labels).tolist(), reverse=True)


def test_the_seed_decides_and_equal_texts_are_no_trouble():
    made, _ = texts()
    assert np.array_equal(cluster_texts(made, 3, seed=4).labels, cluster_texts(made, 3, seed=4).labels)
    same = cluster_texts(["one text"] * 5, 2, seed=0)
    assert len(same.labels) == 5 and len(same.words) == 2
