"""A network as a list of few operations on matrices, and its weights in half precision.

The rows of a matrix are tokens, or pixels of a grid row by row; its columns are features. An
operation is [kind, inputs, options]; its inputs are places of earlier operations in the list, and
the last one gives the logits, in one row. js/network.js runs the list, and says what each does.

Axes: k rows of a weight, n columns.
"""

import base64
import zlib
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

__all__ = ["Program"]

LARGEST = 65504.0  # of a number in half precision


class Program:
    """List of operations, and the weights that they name.

    Args:
        input_size: (h, w) in pixels.

    Attributes:
        layout: How tokens lie, as {prefix, grid, pool}, None without tokens.
        cam: Of what the logits are linear, as {features, weights}, None where they are not.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.live import Program
        >>> program = Program((2, 2))
        >>> mean = program.add("mean", program.image, skip=0)
        >>> program.add("linear", mean, weight=program.matrix(np.ones((3, 5))), bias=None)
        2
        >>> program.data()["weights"]
        [{'at': 0, 'shape': (3, 5), 'form': 'matrix'}]
    """

    def __init__(self, input_size: tuple[int, int]):
        self.input_size = input_size
        self.layout: dict[str, Any] | None = None
        self.cam: dict[str, int] | None = None
        self._ops: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []
        self._weights: list[dict[str, Any]] = []
        self._bytes = bytearray()
        self.image = self.add("image")

    def add(self, kind: str, *inputs: int, **options: Any) -> int:
        """Add an operation, and return its place."""
        self._ops.append((kind, inputs, options))
        return len(self._ops) - 1

    def matrix(
        self, values: Float[ndarray, "k n"], scale: Float[ndarray, " n"] | None = None
    ) -> int:
        """Add the matrix that rows are multiplied by, in half precision.

        Args:
            values: The matrix, (k n).
            scale: Of each column, in single precision; the page multiplies by it when it opens.

        Returns:
            Its place among the operations.

        Raises:
            ValueError: A number is beyond half precision's range.
        """
        factor = None if scale is None else self.table(scale)
        if not np.abs(values).max() <= LARGEST:
            raise ValueError(
                f"a weight of {np.abs(values).max():.1e} is beyond half precision, which ends at "
                f"{LARGEST:.0f}"
            )
        weight = self._weight(values, "matrix", "<f2")
        if factor is not None:
            self._weights[weight]["scale"] = factor
        return weight

    def table(self, values: Float[ndarray, "*k n"]) -> int:
        """Add numbers that are kept in single precision: a vector, or rows of them."""
        return self._weight(np.atleast_2d(values), "table", "<f4")

    def data(self) -> dict[str, Any]:
        """Describe the program as js/network.js reads it."""
        return {
            "input": self.input_size,
            "layout": self.layout,
            "cam": self.cam,
            "ops": self._ops,
            "weights": self._weights,
            "kept": [] if self.cam is None else [self.cam["features"]],
        }

    def text(self) -> str:
        """Return the weights, deflated, as base64."""
        return base64.b64encode(zlib.compress(self._bytes)).decode()

    def _weight(self, values: Float[ndarray, "k n"], form: str, dtype: str) -> int:
        numbers = np.ascontiguousarray(values, dtype).tobytes()
        self._weights.append({"at": len(self._bytes), "shape": values.shape, "form": form})
        self._bytes += numbers + bytes(-len(numbers) % 4)
        return len(self._weights) - 1
