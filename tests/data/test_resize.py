import numpy as np
import pytest
import torch

from vision_attn.data import ProgressiveResizing
from vision_attn.data.draws import Draws


def test_images_grow_with_the_epochs_to_their_own_size() -> None:
    grow = ProgressiveResizing(sizes=[8, 12, 16], epochs=[0, 2, 5])
    images = torch.full((3, 3, 16, 16), 51, dtype=torch.uint8)
    for epoch, size in ((0, 8), (1, 8), (2, 12), (4, 12), (5, 16), (90, 16)):
        found = grow(images, Draws(0, epoch, np.arange(3)))
        assert found.shape == (3, 3, size, size)
        if size == 16:
            assert found is images
        else:
            torch.testing.assert_close(found, torch.full_like(found, 0.2))


@pytest.mark.parametrize(
    ("sizes", "epochs"), [([], []), ([8], [0, 1]), ([8, 9], [3, 0]), ([8], [1])]
)
def test_epochs_that_do_not_rise_from_zero_are_refused(sizes: list[int], epochs: list[int]) -> None:
    with pytest.raises(ValueError, match="one epoch for each size, rising from 0"):
        ProgressiveResizing(sizes, epochs)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        ProgressiveResizing([0], [0])
