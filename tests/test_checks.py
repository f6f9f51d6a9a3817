"""The run-time type checks of the tests themselves: values, shapes and fields that are wrong."""

import os

import jaxtyping
import pytest
import torch

from vision_attn.attention import Additive
from vision_attn.methods import EdgeMap
from vision_attn.types import TokenLayout

pytestmark = pytest.mark.skipif(
    os.environ.get("VISION_ATTN_TYPECHECK") == "0", reason="run-time type checks are off"
)


def test_a_value_of_another_type_is_caught() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="head_dim"):
        Additive(head_dim="7")  # type: ignore[arg-type]


def test_shapes_that_do_not_belong_together_are_caught() -> None:
    score = Additive(head_dim=7)
    q, k = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 13, 7)
    assert score(q, k).shape == (2, 3, 5, 13)
    with pytest.raises(jaxtyping.TypeCheckError):
        score(q, k[:1])  # 1 and 2 images: torch would broadcast them


def test_fields_of_another_type_are_caught() -> None:
    assert TokenLayout(1, (2, 3)).grid == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        TokenLayout(1, (2, "3"))  # type: ignore[arg-type]
    with pytest.raises(jaxtyping.TypeCheckError):
        EdgeMap(cells="many")  # type: ignore[arg-type]
