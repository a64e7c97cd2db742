"""For all tests. Before any imports torch: OpenMP threads wait asleep, so that tests beside each other do not stall."""

import os

import pytest

LAST = "test_soak.py"  # takes two minutes: what else is wrong is known before

os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == LAST)
