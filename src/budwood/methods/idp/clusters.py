"""Texts into groups by their words: tf-idf vectors and k-means, seeded, the same on every machine.

tf = 1 + ln c for c occurrences, idf = ln((1 + N) / (1 + df)) + 1, each text scaled to length 1; the distance is the
Euclidean one, which on unit vectors orders as the cosine does. The best of several starts is kept, each by k-means++
(Arthur and Vassilvitskii, 2007).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

WORDS = 4096  # of the vocabulary: the ones in most texts
STARTS = 8
ROUNDS = 100
_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, eq=False)
class Clusters:
    """A division of texts.

    Attributes:
        labels: the cluster of each text; clusters are numbered from the largest down.
        words: for each cluster the words that set it apart most.
    """

    labels: Int[np.ndarray, " n"]
    words: tuple[tuple[str, ...], ...]


def cluster_texts(texts: Sequence[str], k: int, *, seed: int) -> Clusters:
    """Divide texts into `k` clusters, at most as many as there are different texts.

    Args:
        texts: at least `k`.
        seed: of the starts.
    """
    vectors, vocabulary = tf_idf(texts)
    labels = k_means(vectors, k, np.random.default_rng(seed))
    sizes = np.bincount(labels, minlength=k)
    order = np.argsort(-sizes, kind="stable")
    labels = np.argsort(order, kind="stable")[labels]
    return Clusters(labels, tuple(_telling(vectors, labels, number, vocabulary) for number in range(k)))


def tf_idf(texts: Sequence[str]) -> tuple[Float[np.ndarray, "n words"], list[str]]:
    """Return a unit vector for each text (zero where it has none of the words), and the words."""
    counts = [Counter(word.lower() for word in _WORD.findall(text)) for text in texts]
    found = Counter(word for count in counts for word in count)
    vocabulary = [word for word, _ in sorted(found.items(), key=lambda one: (-one[1], one[0]))[:WORDS]]
    place = {word: i for i, word in enumerate(vocabulary)}
    vectors = np.zeros((len(texts), len(vocabulary)))
    for row, count in enumerate(counts):
        for word, times in count.items():
            if word in place:
                vectors[row, place[word]] = 1 + np.log(times)
    vectors *= np.log((1 + len(texts)) / (1 + np.array([found[word] for word in vocabulary]))) + 1
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths), vocabulary


def k_means(points: Float[np.ndarray, "n d"], k: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Return the cluster of each point: of `STARTS` runs of Lloyd's algorithm the one with the smallest distances."""
    runs = [_lloyd(points, _first_centres(points, k, rng)) for _ in range(STARTS)]
    return min(runs, key=lambda run: run[1])[0]


def _first_centres(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return k points, each drawn in proportion to the squared distance from those before."""
    chosen = [int(rng.integers(len(points)))]
    while len(chosen) < k:
        nearest = _distances(points, points[chosen]).min(axis=1)
        total = nearest.sum()
        chosen.append(int(rng.choice(len(points), p=nearest / total if total > 0 else None)))
    return points[chosen]


def _lloyd(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    labels = np.full(len(points), -1)
    for _ in range(ROUNDS):
        distances = _distances(points, centres)
        now = distances.argmin(axis=1)
        if np.array_equal(now, labels):
            break
        labels = now
        for number in range(len(centres)):
            members = points[labels == number]
            # A centre that lost all its points starts anew at the point that fits worst.
            centres[number] = members.mean(axis=0) if len(members) else points[distances.min(axis=1).argmax()]
    return labels, float(_distances(points, centres)[np.arange(len(points)), labels].sum())


def _distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return squared distances, (n, k)."""
    squared = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.maximum(squared, 0)


def _telling(vectors: np.ndarray, labels: np.ndarray, number: int, vocabulary: Sequence[str]) -> tuple[str, ...]:
    """Return the five words whose mean weight in a cluster exceeds that outside it most."""
    inside = labels == number
    if not inside.any():
        return ()
    outside = vectors[~inside].mean(axis=0) if (~inside).any() else np.zeros(len(vocabulary))
    gain = vectors[inside].mean(axis=0) - outside
    return tuple(vocabulary[i] for i in np.argsort(-gain, kind="stable")[:5] if gain[i] > 0)
