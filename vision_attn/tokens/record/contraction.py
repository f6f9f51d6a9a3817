"""Products of weights with values, as matrix products whatever the order of their axes.

Axes: b batch, head, i queries, j keys, e value width.
"""

from typing import NamedTuple

__all__ = ["Contraction"]

ELLIPSIS = "ABCDEFGH"  # letters for the axes of an ellipsis: equations rarely have capitals


class Contraction(NamedTuple):
    """An einsum as weights (b head i j) @ v (b head j e) -> (b head i e).

    For b and head it may have one or more axes, of any kind.

    Attributes:
        weights: The order in which to take the axes of the weights.
        v: The same of the values.
        out: That of the product's axes, which gives what the einsum gives.

    Examples:
        >>> from vision_attn.tokens.record.contraction import Contraction
        >>> Contraction.of("bqhk,bkhd->bqhd", 4, 4)
        Contraction(weights=(0, 2, 1, 3), v=(0, 2, 1, 3), out=(0, 2, 1, 3))
        >>> Contraction.of("bqk,bqk->bq", 3, 3) is None
        True
    """

    weights: tuple[int, ...]
    v: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def of(cls, equation: str, weights_axes: int, v_axes: int) -> "Contraction | None":
        """Read the equation of weights and values, in this order; None where it is no such product.

        Args:
            equation: As `torch.einsum` takes it.
            weights_axes: How many axes the weights have.
            v_axes: How many axes the values have.
        """
        operands, _, out = equation.replace(" ", "").partition("->")
        left, _, right = operands.partition(",")
        weights, v = spell_out(left, weights_axes), spell_out(right, v_axes)
        hidden = max(weights_axes - len(left), v_axes - len(right))
        out = spell_out(out, len(out) + hidden)
        queries, keys, width = (
            [
                letter
                for letter in word
                if tuple(letter in axes for axes in (weights, v, out)) == pattern
            ]
            for word, pattern in (
                (weights, (True, False, True)),
                (weights, (True, True, False)),
                (v, (False, True, True)),
            )
        )
        lead = [letter for letter in out if letter in weights and letter in v]
        rows, columns = [*lead, *queries, *keys], [*lead, *keys, *width]
        context = [*lead, *queries, *width]
        fits = len(queries) == len(keys) == len(width) == 1 and len(lead) > 0
        wholes = zip((rows, columns, context), (weights, v, out), strict=True)
        if not fits or any(sorted(order) != sorted(word) for order, word in wholes):
            return None  # a letter twice, or a sum over one operand alone
        return cls(
            tuple(map(weights.index, rows)),
            tuple(map(v.index, columns)),
            tuple(map(context.index, out)),
        )


def spell_out(word: str, axes: int) -> str:
    """Name the axes that an ellipsis stands for.

    Examples:
        >>> from vision_attn.tokens.record.contraction import spell_out
        >>> spell_out("...ij", 4)
        'ABij'
    """
    return word.replace("...", ELLIPSIS[: axes - len(word) + 3])
