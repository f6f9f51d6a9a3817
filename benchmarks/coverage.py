"""Networks whose attention is read, and how near their maps come to dense float64 matrices.

    python benchmarks/coverage.py [NAME ...]

The networks, few layers of each family with attention made peaky, and the dense formulas are those
of tests/explain/test_dense.py. An error is a share of the map's maximum: the worst of nine methods
in float64, and Rollout's in float32.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests" / "explain"))
import test_dense


def main(names: list[str]) -> None:
    if unknown := set(names) - set(test_dense.NETWORKS):
        sys.exit(f"unknown {sorted(unknown)}: expected some of {', '.join(test_dense.NETWORKS)}")
    print("| network | calls captured / expected | error, float64 | error, float32 | sum of r |")
    print("|---|---|---|---|---|")
    for name in names or test_dense.NETWORKS:
        found = test_dense.compared(name, pytest.MonkeyPatch())
        print(
            f"| {name} | {found.captured} / {found.expected} | {found.error64:.0e} | "
            f"{found.error32:.0e} | {found.total:.7f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
