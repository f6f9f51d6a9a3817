"""Photos that are read in blocks: the order of an epoch, and the reader that goes ahead."""

import io
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import Batches, InOrder, Shuffled, StreamedSet
from vision_attn.data.block_photos import AHEAD, BlockPhotos, read_ahead
from vision_attn.data.blocks import Blocks
from vision_attn.data.draws import Draws
from vision_attn.data.photo_sets import CenterCrop
from vision_attn.data.rows import RowPhotos

NUMBERS = np.repeat([4, 9, 2, 7, 0, 30, 31], [11, 13, 1, 7, 17, 5, 19])


@pytest.mark.parametrize("window", [0, 3, 23, 10_000])
@pytest.mark.parametrize("mixed", [False, True])
def test_an_order_is_whole_and_keeps_a_block_within_its_window(window: int, mixed: bool) -> None:
    numbers = np.random.default_rng(1).permutation(NUMBERS) if mixed else NUMBERS
    orders = [Blocks(numbers, window).permutation((5, epoch)) for epoch in range(4)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(len(numbers)))
        for block in set(numbers.tolist()):
            places = np.flatnonzero(numbers[order] == block)
            assert places[-1] - places[0] < 2 * (window + 19) + 19
    assert len({tuple(order.tolist()) for order in orders}) == 4
    again = Blocks(numbers, window).permutation((5, 2))
    np.testing.assert_array_equal(again, orders[2])


def test_without_a_window_each_block_is_whole_and_shuffled() -> None:
    blocks = Blocks(np.repeat(np.arange(6), 50), window=0)
    order = blocks.permutation((0, 0))
    whole = blocks.numbers[order].reshape(6, 50)
    # an image moves by less than its block's length, so that it may only overlap the next block
    firsts = [int(np.bincount(row).argmax()) for row in whole]
    assert sorted(firsts) != firsts
    inside = order[blocks.numbers[order] == 3]
    assert sorted(inside.tolist()) == list(range(150, 200)) != inside.tolist()


def test_a_wide_window_mixes_like_a_shuffle() -> None:
    """In a window as wide as the set, a batch has images of nearly all blocks."""
    blocks = Blocks(np.repeat(np.arange(20), 100), window=2000)
    order = blocks.permutation((3, 1))
    kinds = [len(set(blocks.numbers[part].tolist())) for part in np.array_split(order, 20)]
    assert min(kinds[5:15]) >= 14


def test_a_spread_is_whole_blocks_in_order() -> None:
    blocks = Blocks(NUMBERS, window=5)
    assert blocks.spread(len(NUMBERS)).tolist() == list(range(len(NUMBERS)))
    some = blocks.spread(20)
    assert some.tolist() == sorted(some.tolist())
    taken = set(NUMBERS[some].tolist())
    assert len(taken) == 2
    assert np.isin(NUMBERS, list(taken)).sum() == len(some)


def test_some_of_the_images_keep_their_blocks() -> None:
    chosen = Blocks(NUMBERS, 5).chosen(np.array([60, 0, 24]))
    assert chosen.numbers.tolist() == [31, 4, 2]
    assert chosen.window == 5


def photo(number: int) -> bytes:
    written = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((43, 31)).save(written, "JPEG", quality=90)
    return written.getvalue()


class Counted(BlockPhotos):
    """Photos in blocks that count how often each was read, and how many are held."""

    def __init__(self, places: np.ndarray, window: int, numbers: np.ndarray = NUMBERS) -> None:
        self.places, self.window, self.all = places, window, numbers
        self.blocks = Blocks(numbers[places], window)
        self.names = [f"photo {place}" for place in places]
        self.reads: list[int] = []
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[Any, Any]:
        return {**self.__dict__, "lock": None}

    def read(self, item: Any, shorter_side: Any = None) -> Image.Image:
        return Image.open(io.BytesIO(photo(int(self.places[item])))).convert("RGB")

    def side(self, item: Any) -> tuple[int, int]:
        return 43, 31

    def stamp(self, item: Any) -> tuple[int, int]:
        return 0, 0

    def chosen(self, items: Any) -> "Counted":
        return Counted(self.places[items], self.window)

    def read_block(self, block: Any) -> dict[Any, Any]:
        with self.lock:
            self.reads.append(block)
        return {int(i): photo(int(i)) for i in np.flatnonzero(self.all == block)}

    def held(self, items: Any, blocks: Any) -> RowPhotos:
        block = self.blocks.numbers
        cells = {int(i): blocks[int(block[i])][int(self.places[i])] for i in items}
        return RowPhotos(cells, {int(i): self.names[int(i)] for i in items}, "image")


def images(photos: Counted, workers: int = 0) -> StreamedSet:
    labels = np.arange(len(photos.names)) % 3
    return StreamedSet(photos, labels, (16, 16), CenterCrop((16, 16), 1.0), 16, workers)


def test_every_block_is_read_once_and_let_go() -> None:
    photos = Counted(np.arange(len(NUMBERS)), window=7)
    order = Shuffled(len(NUMBERS), 4, seed=2, blocks=photos.blocks)
    wanted = [(items, Draws(0, 0, items)) for items in order.batches()]
    last_batch = {int(b): n for n, (items, _) in enumerate(wanted) for b in NUMBERS[items]}
    for number, (items, _, held) in enumerate(read_ahead(photos, iter(wanted))):
        assert held.jpeg(int(items[0])) == photo(int(items[0]))
        ahead = {int(b) for later, _ in wanted[: number + 1 + AHEAD] for b in NUMBERS[later]}
        assert set(photos.reads) <= ahead
    assert sorted(photos.reads) == sorted(set(NUMBERS.tolist()))
    assert len(last_batch) == 7


def test_a_reader_that_is_left_ends_its_threads() -> None:
    photos = Counted(np.arange(len(NUMBERS)), window=7)
    wanted = [(items, Draws(0, 0, items)) for items in InOrder(len(NUMBERS), 4).batches()]
    before = threading.active_count()
    some: Any = read_ahead(photos, wanted)
    next(some)
    some.close()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_shows_what_it_shows_photo_by_photo(workers: int) -> None:
    places = np.random.default_rng(3).permutation(len(NUMBERS))[:59]
    train: Any = images(Counted(places, window=11), workers)
    found = list(Batches(train, Shuffled(59, 6, seed=1, blocks=train.blocks), seed=5))
    assert sum(map(len, found)) == 59
    for batch in found:
        alone = train.fetch(batch.draws.items, Draws(5, 0, batch.draws.items))
        torch.testing.assert_close(batch.images, alone, rtol=0, atol=0)
    assert len(train.photos.reads) == len(set(train.photos.reads)) == 7


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_epoch_goes_on_and_is_shared_as_of_files() -> None:
    train = images(Counted(np.arange(len(NUMBERS)), window=11))

    def batches(size: int, rank: int = 0, world: int = 1) -> Batches:
        order = Shuffled(len(train), size, rank, world, 4, train.blocks)
        return Batches(train, order, seed=5)

    whole = list(batches(6))
    first = batches(6)
    some: Any = iter(first)
    next(some), next(some)
    state = first.state_dict()
    some.close()
    again = batches(6)
    again.load_state_dict(state)
    for one, other in zip(again, whole[2:], strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=0, atol=0)
    for one, *shares in zip(whole, batches(3, 0, 2), batches(3, 1, 2), strict=True):
        together = torch.cat([share.images for share in shares])
        torch.testing.assert_close(together, one.images, rtol=0, atol=0)


def test_photos_in_blocks_can_be_sent() -> None:
    photos = pickle.loads(pickle.dumps(Counted(np.arange(len(NUMBERS)), window=1)))
    assert photos.blocks.window == 1
