"""Shapes, textures and colours for drawing many images at once.

Only +, -, *, /, floor, abs, min and max: correctly rounded everywhere, so a picture is the same to
the bit on every machine, whatever the batch size and the number of threads. Coordinates are in
units of the square root of the shape's area: every shape here has area 1.

Axes: n images, h rows, w columns.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "bumps",
    "by_kind",
    "checks",
    "coverage",
    "cross",
    "disk",
    "dots",
    "hsv",
    "lattice",
    "plain",
    "square",
    "star",
    "stripes",
    "triangle",
    "unit_vectors",
]

Plane = Float[Tensor, "n h w"]
Numbers = Float[Tensor, " n"]


def disk(x: Plane, y: Plane) -> Plane:
    """Signed distance to a disk's edge, negative inside; exact to first order at the edge."""
    radius = 0.5641896  # 1 / sqrt(pi)
    return (x * x + y * y - radius**2) * (0.5 / radius)


def square(x: Plane, y: Plane) -> Plane:
    """The same for a square."""
    return torch.maximum(x.abs(), y.abs()) - 0.5


def triangle(x: Plane, y: Plane) -> Plane:
    """The same for an equilateral triangle around its centre."""
    return torch.maximum(y * 0.5 + x.abs() * 0.8660254, -y) - 0.4386914  # inradius: 3^(-3/4)


def cross(x: Plane, y: Plane) -> Plane:
    """The same for a plus sign: arms 1.57 long from end to end and 0.36 wide."""
    x, y = x.abs(), y.abs()
    return torch.maximum(torch.maximum(x, y) - 0.7847, torch.minimum(x, y) - 0.1799)


def star(x: Plane, y: Plane) -> Plane:
    """The same for a five-pointed star: outer radius 0.87, inner radius 0.45 of that."""
    cos36, sin36 = 0.8090170, 0.5877853
    x = x.abs()  # fold the plane onto one tenth of the star, then one edge is left
    for side in (cos36, -cos36):
        beyond = (x * side - y * sin36).clamp_min(0) * 2
        x, y = x - beyond * side, y + beyond * sin36
    x, y = x.abs(), y - 0.8695665
    edge_x, edge_y = 0.45 * sin36, 0.45 * cos36 - 1
    length = (edge_x**2 + edge_y**2) ** 0.5
    return y * (edge_x / length) - x * (edge_y / length)


def stripes(u: Plane, v: Plane) -> Plane:
    """Signed distance to stripes of period 1, half of it ink."""
    return (u - u.floor() - 0.5).abs() - 0.25


def dots(u: Plane, v: Plane) -> Plane:
    """Signed distance to dots on a square grid of period 1."""
    u, v = u - u.floor() - 0.5, v - v.floor() - 0.5
    radius = 0.33
    return (u * u + v * v - radius**2) * (0.5 / radius)


def checks(u: Plane, v: Plane) -> Plane:
    """Signed distance to every second field of a chess board, two fields a period."""
    u, v = stripes(u, v), stripes(v, u)
    return (1 - 2 * ((u < 0) == (v < 0)).to(u.dtype)) * torch.minimum(u.abs(), v.abs())


def lattice(u: Plane, v: Plane) -> Plane:
    """Signed distance to the bars of a grid, 0.3 of a period wide."""
    return torch.minimum(stripes(u, v), stripes(v, u)) + 0.1


def plain(u: Plane, v: Plane) -> Plane:
    """No ink anywhere."""
    return torch.ones_like(u)


TEXTURES = {
    "striped": stripes,
    "dotted": dots,
    "checked": checks,
    "latticed": lattice,
    "plain": plain,
}


def by_kind(
    functions: tuple[Callable[[Plane, Plane], Plane], ...], kinds: Tensor, x: Plane, y: Plane
) -> Plane:
    """functions[kinds[i]] of plane i."""
    out = torch.empty_like(x)
    for kind, function in enumerate(functions):
        chosen = (kinds == kind).nonzero()[:, 0]
        out[chosen] = function(x[chosen], y[chosen])
    return out


def coverage(distance: Plane) -> Plane:
    """How much of a pixel lies inside, from the signed distance of its centre in pixels."""
    return (0.5 - distance).clamp_(0, 1)


def bumps(phase: Plane) -> Plane:
    """A smooth wave of period 1 between 0 and 1: 16 f^2 (1-f)^2, f the fraction of the phase."""
    f = phase - phase.floor()
    f = f * (1 - f)
    return f * f * 16


def unit_vectors(u: Numbers) -> tuple[Numbers, Numbers]:
    """(cos, sin) of an angle that runs once round the circle as u runs from 0 to 1.

    By the tangent of the half angle within a quarter turn, so that no cosine need be taken; angles
    at the quarters' ends are 15 % rarer than in their middle.
    """
    quarter = (u * 4).floor()
    t = (u * 4 - quarter - 0.5) * 0.8284271  # tan of up to 22.5 degrees either way
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    odd = (quarter == 1) | (quarter == 3)
    sign = 1 - 2 * (quarter >= 2).to(u.dtype)
    return sign * torch.where(odd, -sin, cos), sign * torch.where(odd, cos, sin)


def hsv(hue: Numbers, saturation: Numbers, value: Numbers) -> Float[Tensor, "n 3"]:
    """Red, green and blue in 0..1; the hue runs once round the circle as it runs from 0 to 1."""
    k = hue[:, None] * 6 + torch.tensor([5.0, 3.0, 1.0], dtype=torch.float32, device="cpu")
    k = k - (k / 6).floor() * 6
    dip = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[:, None] * (1 - saturation[:, None] * dip)
