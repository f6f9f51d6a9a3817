"""Each reach into Lightning is where it was, and without it the results are the same."""

import lightning
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from vision_attn.compat import lightning_private as reaches
from vision_attn.training import FSDP2


def test_lightning_keeps_the_number_of_processes_where_it_was() -> None:
    assert getattr(FSDP2(), reaches.SIZE, None) == "auto", (
        f"lightning {lightning.__version__} no longer has ModelParallelStrategy.{reaches.SIZE}: "
        "vision_attn takes what fsdp2 left open from a strategy that is made with the number"
    )


@pytest.mark.parametrize("taken_away", [False, True])
def test_a_strategy_becomes_as_if_it_had_been_made_with_the_number(
    taken_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if taken_away:
        monkeypatch.setattr(reaches, "SIZE", "_taken_away")
    strategy, made = FSDP2(), ModelParallelStrategy(6, 1, save_distributed_checkpoint=False)
    for each in (strategy, made):
        each.num_nodes, each.parallel_devices = 2, [torch.device("cpu")] * 3
    reaches.share_among(strategy, 6)
    redirection = "_forward_redirection"  # an object of each strategy's own
    expected, found = ({**vars(each), redirection: None} for each in (made, strategy))
    assert found == expected
