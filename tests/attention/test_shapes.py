import random

import pytest
import torch

from vision_attn.attention.shapes import broadcast_shape


def test_shapes_broadcast_as_torchs_do() -> None:
    draw, fitting = random.Random(0), 0
    for _ in range(300):
        shapes = [
            tuple(
                draw.choice((1, 1, 3, 0, 5)[: draw.randint(2, 5)])
                for _ in range(draw.randint(0, 4))
            )
            for _ in range(draw.randint(1, 3))
        ]
        try:
            expected = torch.broadcast_shapes(*shapes)
        except RuntimeError:
            with pytest.raises(ValueError, match="shapes do not broadcast"):
                broadcast_shape(*shapes)
            continue
        fitting += 1
        assert broadcast_shape(*shapes) == tuple(expected), shapes
    assert 100 < fitting < 290


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"do not broadcast: \(2, 3\), torch.Size\(\[5, 1\]\)"):
        broadcast_shape((2, 3), torch.Size([5, 1]))
