"""Ways to damage a file: its bytes, the tree of a checkpoint, of a config, a safetensors header.

Every function takes a `random.Random` and changes nothing that it is given.
"""

import copy
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import torch
import yaml

INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]
WORDS = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\0\0\0\x80"]


def flipped(draw: Random, data: bytes, other: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def overwritten(draw: Random, data: bytes, other: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice([1, 2, 8])):
        out[draw.randrange(len(out))] = draw.choice(INTERESTING)
    return bytes(out)


def large_numbers(draw: Random, data: bytes, other: bytes) -> bytes:
    """Four bytes of a header that become an extreme number."""
    at = draw.randrange(max(1, min(len(data), 256)))
    return data[:at] + draw.choice(WORDS) + data[at + 4 :]


def truncated(draw: Random, data: bytes, other: bytes) -> bytes:
    return data[: int(len(data) * draw.random() ** draw.choice([0.3, 1, 3]))]


def inserted(draw: Random, data: bytes, other: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.choice([1, 2, 16, 500])) + data[at:]


def removed(draw: Random, data: bytes, other: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + data[at + draw.choice([1, 2, 16, 200]) :]


def repeated(draw: Random, data: bytes, other: bytes) -> bytes:
    start, end = sorted(draw.choices(range(len(data) + 1), k=2))
    return data[:end] + data[start:end] * draw.choice([1, 3]) + data[end:]


def spliced(draw: Random, data: bytes, other: bytes) -> bytes:
    """The head of one file and the tail of another."""
    at = int(len(data) * draw.random() ** 3)
    return data[:at] + other[int(len(other) * draw.random() ** 3) :]


def swapped(draw: Random, data: bytes, other: bytes) -> bytes:
    size = max(1, min(len(data) // 4, draw.choice([1, 4, 32])))
    a, b = sorted(draw.choices(range(max(1, len(data) - 2 * size)), k=2))
    b = max(b, a + size)
    return (
        data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size] + data[b + size :]
    )


def zeroed(draw: Random, data: bytes, other: bytes) -> bytes:
    at, size = draw.randrange(len(data)), draw.choice([4, 64, 512])
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]


BYTES: list[Callable[[Random, bytes, bytes], bytes]] = [
    *(flipped, overwritten, large_numbers, truncated, inserted),
    *(removed, repeated, spliced, swapped, zeroed),
]


def of_bytes(draw: Random, data: bytes, other: bytes) -> bytes:
    """One to three of `BYTES` after each other."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if data:
            data = draw.choice(BYTES)(draw, data, other or b"\0")
    return data


# A tree: dicts and lists with plain values or tensors at its leaves. A place in it is its container
# and its key there.


def places(tree: Any, deepest: int = 50) -> list[tuple[Any, Any]]:
    """Those down to so many levels, as a changed tree may hold itself."""
    found = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        found.append((tree, key))
        if isinstance(value, (dict, list)) and deepest > 0:
            found += places(value, deepest - 1)
    return found


def with_lists(tree: Any) -> Any:
    """Tuples as lists, so that they can be changed."""
    if isinstance(tree, dict):
        return {key: with_lists(value) for key, value in tree.items()}
    return [with_lists(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def nested(draw: Random) -> Any:
    value: Any = draw.choice([1, "a"])
    for _ in range(draw.choice([3, 90, 150, 800])):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def plain_value(draw: Random) -> Any:
    """A value of any kind, with sizes that nothing holds among them."""
    return draw.choice(
        [
            *(None, True, False, 0, 1, -1, 2, 3, 7, 17, 10**9, 10**12, 2**63, -(2**70)),
            *(0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
            *(
                "",
                "a",
                "\0",
                "\x1b[31m",
                "é" * 40,
                "../../x",
                "/dev/zero",
                "vision_attn.models.ViT",
            ),
            *([], {}, [1, 2], [0], [-1, 16], [10**12, 16], {"class_path": "os.system"}, "1e999"),
            *({"class_path": "torch.nn.Linear"}, {"class_path": 3}, {"init_args": None}, "auto"),
        ]
    )


def odd_key(draw: Random) -> Any:
    return draw.choice([7, None, -1, "", "x", "\x1b[31m", 1.5, True, "class_path", "init_args"])


def odd_tensor(draw: Random, tensor: torch.Tensor) -> Any:
    """A tensor that is not what a weight should be, or no tensor."""
    made: list[Callable[[], Any]] = [
        lambda: torch.full_like(tensor, draw.choice([torch.nan, torch.inf, -torch.inf])),
        lambda: tensor.flatten()[: draw.randrange(tensor.numel() + 1)],
        lambda: tensor.unsqueeze(0),
        lambda: tensor.mT if tensor.ndim > 1 else tensor.flatten()[:0],
        lambda: tensor.to_sparse() if tensor.ndim else tensor,
        lambda: tensor.to("meta"),
        lambda: tensor.to(draw.choice([torch.complex64, torch.bool, torch.int8, torch.float64])),
        lambda: torch.zeros(1).expand(10 ** draw.choice([6, 9, 12])),
        lambda: torch.zeros(()),
        lambda: tensor * draw.choice([1e30, 1e38, -1e38, 0.0]),
        lambda: plain_value(draw),
    ]
    return draw.choice(made)()


def of_tree(draw: Random, tree: Any, deep: bool = True) -> Any:
    """One to three places of a tree changed: values, keys, tensors, lost, doubled, exchanged."""
    tree = with_lists(copy.deepcopy(tree))
    for _ in range(draw.choice([1, 1, 2, 3])):
        found = places(tree)
        if not found:
            break
        inside, key = draw.choice(found)
        value = inside[key]
        if isinstance(value, torch.Tensor) and draw.random() < 0.7:
            inside[key] = odd_tensor(draw, value)
            continue
        how = draw.randrange(6)
        if how == 0 and deep:
            inside[key] = nested(draw)
        elif how <= 2:
            inside[key] = plain_value(draw)
        elif how == 3:
            del inside[key]
        elif how == 4 and isinstance(inside, dict):
            inside[odd_key(draw)] = inside[key] if draw.random() < 0.5 else inside.pop(key)
        else:
            there, name = draw.choice(found)
            if name in there if isinstance(there, dict) else name < len(there):
                with suppress(RecursionError):  # copies go no deeper than Python's stack
                    inside[key] = copy.deepcopy(there[name])
    return tree


def of_number(draw: Random, tree: Any) -> Any:
    """One whole number of a tree changed a little, or much."""
    tree = with_lists(copy.deepcopy(tree))
    numbers = [(inside, key) for inside, key in places(tree) if type(inside[key]) is int]
    if numbers:
        inside, key = draw.choice(numbers)
        inside[key] = draw.choice([-1, 0, 1, inside[key] + 1, -inside[key], 10**9, 10**12])
    return tree


def of_config(draw: Random, text: str) -> bytes:
    """A config whose tree is damaged, or to which YAML's own tricks are added."""
    how = draw.randrange(8)
    if how == 0:
        tricks = [
            "a: &a [*a]\n", "a: &a {b: *a}\n", "a: *nowhere\n", "<<: [1]\n", "? [1]\n: 2\n", "- 1\n",
            "a: !!python/object/apply:os.system [id]\n", "a: !!binary x\n", "a: !!timestamp x\n",
            "---\na: 1\n", "%YAML 9.9\n---\n", "a: 0x\n", "a: 1:99:99\n", "a: 2001-13-45\n", "\t a: 1\n",
            "a: " + "9" * 5000 + "\n", "model: null\n", "trainer: 3\n", "data: []\n", "a: !!int x\n",
            "a: !!float x\n", "a: 0b_\n", "a: -0x_\n", "{a: {b}: c}\n", "!!set {a}\n", "a: !!omap [1]\n",
        ]  # fmt: skip
        trick = draw.choice(tricks)
        return (trick + text if draw.random() < 0.5 else text + trick).encode()
    if how == 1:
        levels, width = draw.choice([(3, 3), (9, 9), (30, 2)])
        lines = ["l0: &l0 [a, b]"]
        lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
        return (text + "\n".join(lines) + "\n").encode()
    if how == 2:
        brackets = draw.choice(["[", "{a: ", "- ", "? "]) * draw.choice([50, 200, 5000])
        return (text + "a: " + brackets + "\n").encode()
    if how == 3:
        return of_bytes(draw, text.encode(), text[::-1].encode())
    tree = yaml.safe_load(text)
    changed = of_number(draw, tree) if how == 4 else of_tree(draw, tree)
    try:
        return yaml.safe_dump(changed).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        return of_bytes(draw, text.encode(), b"[" * 99)


def of_safetensors(draw: Random, data: bytes) -> bytes:
    """A header whose shapes, types and places are changed; its length kept true, mostly."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    changed = of_number(draw, header) if draw.random() < 0.5 else of_tree(draw, header, deep=False)
    try:
        text = json.dumps(changed).encode()
    except (TypeError, ValueError):
        text = b"{}"
    length = len(text) if draw.random() < 0.8 else draw.choice([0, 1, len(text) + 9, 2**40, 2**63])
    return struct.pack("<Q", length) + text + data[8 + struct.unpack("<Q", data[:8])[0] :]
