"""What the vector store takes, against a numpy brute-force floor, with recall: 100,000 vectors of 384 dimensions.

    .venv/bin/python -m loadtest.vectors [--count 100000] [--dimensions 384]

Needs numpy, which nothing else does: `pip install numpy`. Vectors are clusters with noise, as embeddings are. What is
measured is what the tools do, without MCP around it; the last lines are through a server in memory.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import trio

from gateway.native import vector_store as store
from gateway.native.vectors import Store, server
from stagedoor import open_client

QUERIES = 50
NEAREST = 10
AT_A_TIME = 64


def made(count: int, dimensions: int) -> tuple[Any, Any]:
    """Vectors to keep, and vectors to ask for, at length 1."""
    numbers = np.random.default_rng(1)
    centres = numbers.normal(size=(max(1, count // 100), dimensions))

    def some(many: int) -> Any:
        vectors = centres[numbers.integers(0, len(centres), many)] + 0.5 * numbers.normal(size=(many, dimensions))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("f4")

    return some(count), some(QUERIES)


def brute(kept: Any, vector: Any) -> list[int]:
    """The nearest ones by looking at all."""
    scores = kept @ vector
    nearest = np.argpartition(-scores, NEAREST)[:NEAREST]
    return [int(id) for id in nearest[np.argsort(-scores[nearest])]]


def median(work: Callable[[Any], Any], inputs: Any) -> tuple[float, list[Any]]:
    """Seconds of one, and what all gave."""
    work(inputs[0])
    took, gave = [], []
    for given in inputs:
        began = time.perf_counter()
        gave.append(work(given))
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2], gave


def size_of(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in folder.iterdir())


async def run(count: int, dimensions: int, folder: Path) -> None:
    """Prints a line for each figure."""
    kept, wanted = made(count, dimensions)
    floor, truth = median(lambda vector: brute(kept, vector), wanted)
    file = Store(folder / "v.db")

    async def insert(ids: range) -> None:
        for id in ids:
            vector = store.packed(kept[id % count].tolist())
            await file.write(lambda c, id=id, vector=vector: store.insert(c, "d", id, vector, None))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for first in range(AT_A_TIME):
            nursery.start_soon(insert, range(first, count, AT_A_TIME))
    together = (time.perf_counter() - began) / count
    began = time.perf_counter()
    await insert(range(count, count + 500))
    alone = (time.perf_counter() - began) / 500
    for id in range(count, count + 500):
        await file.write(lambda c, id=id: store.delete(c, "d", id))

    connection = store.connect(folder / "v.db")

    def ask(vector: Any) -> list[int]:
        packed = store.packed(vector.tolist())
        found = store.read(connection, lambda c: store.query(c, "d", packed, NEAREST))
        return [match.id for match in found]

    query, found = median(ask, wanted)
    hits = sum(len(set(mine) & set(best)) for mine, best in zip(found, truth, strict=True))
    size = size_of(folder)
    print(f"{count} vectors of {dimensions} dimensions")
    print(f"insert, {AT_A_TIME} at a time, each on the disk   {together * 1e6:9.0f} us each")
    print(f"insert, one after the other, each on the disk   {alone * 1e6:9.0f} us each")
    print(f"query, {NEAREST} nearest                          {query * 1e3:9.2f} ms")
    print(f"numpy floor (float32, in memory)                {floor * 1e3:9.2f} ms, {query / floor:.1f} x")
    print(f"recall                                          {hits / QUERIES / NEAREST:9.3f}")
    print(f"file                                            {size / count / dimensions / 4:9.2f} x the vectors' bytes")
    await tools(wanted, folder)


async def tools(wanted: Any, folder: Path) -> None:
    """The same query by MCP, in memory."""
    async with open_client(server(folder / "v.db")) as client:
        took = []
        for vector in wanted:
            began = time.perf_counter()
            result = await client.call_tool("db_query", {"vector": vector.tolist(), "top_k": NEAREST, "db_name": "d"})
            took.append(time.perf_counter() - began)
            assert len(result.structured_content["matches"]) == NEAREST
            assert math.isfinite(result.structured_content["matches"][0]["score"])
        print(f"query by its tool, in memory                    {sorted(took)[len(took) // 2] * 1e3:9.2f} ms")


def main() -> None:
    """Runs it in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, given.count, given.dimensions, Path(folder))


if __name__ == "__main__":
    main()
