"""Before any test imports torch: OpenMP threads wait asleep, so that tests beside each other do not stall."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
