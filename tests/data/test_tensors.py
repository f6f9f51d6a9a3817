import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vision_attn.data import Batches, InOrder, Shuffled, TensorSet
from vision_attn.data.draws import Draws


def small_set(length: int) -> TensorSet:
    images = torch.arange(length, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 5, 7)
    return TensorSet(images.contiguous(), torch.arange(length) % 3)


class SlowSet(TensorSet):
    ahead = 2


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("length", "batch_size"), [(101, 7), (101, 50), (13, 1), (5, 101), (97, 2)]
)
@pytest.mark.parametrize("kind", [InOrder, Shuffled])
def test_an_epoch_shows_every_item_once_whatever_the_number_of_processes(
    kind: Callable[..., InOrder], length: int, batch_size: int, world: int
) -> None:
    shares = [list(kind(length, batch_size, rank, world).batches()) for rank in range(world)]
    assert {len(share) for share in shares} == {len(kind(length, batch_size, 0, world))}
    sizes = [len(items) for share in shares for items in share]
    assert max(sizes) <= max(batch_size, 2)
    assert max(sizes) - min(sizes) <= 2
    assert min(sizes) >= 1
    np.testing.assert_array_equal(
        np.sort(np.concatenate([items for share in shares for items in share])), np.arange(length)
    )


def test_two_processes_see_what_one_sees_at_twice_the_batch_size() -> None:
    one = Shuffled(96, 16, seed=3)
    two = [Shuffled(96, 8, rank, 2, seed=3) for rank in range(2)]
    for order in (one, *two):
        order.set_epoch(4)
    for whole, *shares in zip(one.batches(), *(order.batches() for order in two), strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(shares))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    order = Shuffled(101, 10, seed=1)
    first = order.items()
    order.set_epoch(1)
    assert (order.items() != first).mean() > 0.9
    order.set_epoch(0)
    np.testing.assert_array_equal(order.items(), first)
    assert (Shuffled(101, 10, seed=2).items() != first).mean() > 0.9


def test_errors() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        InOrder(10, 0)
    with pytest.raises(ValueError, match="3 images cannot be divided among 4 processes"):
        InOrder(3, 1, 0, 4)


@pytest.mark.parametrize("kind", [TensorSet, SlowSet])
def test_batches_hold_the_images_and_labels_of_their_items(kind: Callable[..., TensorSet]) -> None:
    whole = small_set(101)
    loader = Batches(kind(whole.images, whole.labels), Shuffled(101, 10))
    assert len(loader) == len(list(loader)) == 11
    for batch, items in zip(loader, loader.sampler.batches(), strict=True):
        assert batch.images[:, 0, 0, 0].tolist() == batch.draws.items.tolist() == items.tolist()
        assert batch.labels.tolist() == [item % 3 for item in items]


@pytest.mark.parametrize("kind", [TensorSet, SlowSet])
def test_a_loader_goes_on_where_another_stopped(kind: Callable[..., TensorSet]) -> None:
    whole = small_set(101)

    def loader() -> Batches:
        return Batches(kind(whole.images, whole.labels), Shuffled(101, 10))

    first = loader()
    first.sampler.set_epoch(2)
    iterator = iter(first)
    list(itertools.islice(iterator, 4))
    second = loader()
    second.load_state_dict(first.state_dict())
    second.sampler.set_epoch(2)
    left = [(b.draws.items.tolist(), b.draws.uniform(2).tolist()) for b in second]
    assert left == [(b.draws.items.tolist(), b.draws.uniform(2).tolist()) for b in iterator]
    assert len(left) == 7
    assert len(list(second)) == 11  # and the epoch after that is whole


def test_a_loader_saved_at_the_end_of_an_epoch_starts_the_next() -> None:
    first = Batches(small_set(101), Shuffled(101, 10))
    list(itertools.islice(first, 4))  # an epoch that the trainer cut short
    second = Batches(small_set(101), Shuffled(101, 10))
    second.load_state_dict(first.state_dict())
    second.sampler.set_epoch(1)
    assert len(list(second)) == 11


def test_a_batch_moves_with_its_random_numbers() -> None:
    batch = next(iter(Batches(small_set(11), InOrder(11, 4)))).to("meta")
    assert batch.images.device.type == batch.labels.device.type == "meta"
    assert batch.draws.uniform(1).device.type == "meta"
    assert len(batch) == 4
    assert Draws(0, 0, np.arange(3)).uniform(1).device.type == "cpu"
