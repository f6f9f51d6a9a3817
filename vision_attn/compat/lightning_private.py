"""Lightning's private state: each reach, why it is needed, and what happens without it.

Tried with lightning 2.6.6.
"""

from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy

SIZE = "_data_parallel_size"  # of ModelParallelStrategy


def share_among(strategy: ModelParallelStrategy, processes: int) -> None:
    """Have the strategy share out weights among so many processes.

    The constructor takes the number, but `--trainer.strategy NAME` calls it before anybody knows
    how many there are. Without the reach, all that the strategy has left open ("auto") is taken
    from another that was made with the number.
    """
    mine = vars(strategy)
    if mine.get(SIZE) == "auto":
        setattr(strategy, SIZE, processes)
        return
    other: dict[str, Any] = vars(ModelParallelStrategy(processes, tensor_parallel_size=1))
    mine.update({name: other[name] for name in mine if mine[name] == "auto"})
