"""Answers to questions about images: two inputs, each attended to in the light of the other.

Axes: b images, q = m b questions, i words of the question, n tokens of the image, h and w of their
grid, d width, k answers, look: one of several sets of weights.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.attention import CoAttention, CoAttentionEnsemble, MemoryHops
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.sequences.models.encoders import (
    ConvEncoder,
    ImageEncoder,
    Memory,
    RecurrentEncoder,
)
from vision_attn.types import Images

__all__ = ["Looks", "QuestionAnswerer"]

Question = Int[Tensor, "q i"]


class Looks(NamedTuple):
    """Weights of each look at the question and at the image.

    Attributes:
        words: Of each co-attention, (q look i).
        maps: The same, then each memory hop, (q look h w).

    Examples:
        >>> import torch
        >>> from vision_attn.sequences.models.questions import Looks
        >>> Looks(words=torch.zeros(2, 1, 5), maps=torch.zeros(2, 1, 4, 4)).maps.shape
        torch.Size([2, 1, 4, 4])
    """

    words: Tensor
    maps: Tensor


class QuestionAnswerer(Rebuildable):
    """A network that answers questions about images by co-attention, memory hops, or both.

    (c_q, c_k) = coattention(words, tokens), several side by side where several are given; without
    any, c_q is the question's last state, and c_k the mean of the image. u = hops(W c_q, tokens),
    where there are hops. The answer is read from [c_q; c_k; u], with hops alone from [c_q; u]. Of m
    b questions about b images, the first m are about the first image, and so on.

    Args:
        answers: How many.
        image_encoder: A factory, called as `image_encoder(dim=dim)`.
        question_encoder: A factory, called as `question_encoder(dim=dim)`.
        dim: The width of words and tokens.
        coattention: Factories, each called as `make(dim=dim)`.
        hops: A factory, called as `hops(dim=dim)`; None: there are none.
        dropout: The share of the classifier's hidden numbers set to 0 in training.

    Examples:
        >>> import torch
        >>> from functools import partial
        >>> from vision_attn.sequences import ConvEncoder, QuestionAnswerer
        >>> image_encoder = partial(ConvEncoder, widths=(4, 8, 8))
        >>> network = QuestionAnswerer(answers=5, image_encoder=image_encoder, dim=8)
        >>> network(torch.randn(2, 3, 24, 24), torch.tensor([[5, 6, 2], [7, 8, 2]])).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        answers: int,
        image_encoder: Callable[..., ImageEncoder] = ConvEncoder,
        question_encoder: Callable[..., RecurrentEncoder] = RecurrentEncoder,
        dim: int = 128,
        coattention: list[Callable[..., CoAttention]] | None = None,
        hops: Callable[..., MemoryHops] | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.answers = answers
        self.image_encoder = image_encoder(dim=dim)
        self.question_encoder = question_encoder(dim=dim)
        self.coattention: nn.Module | None = None
        members = [make(dim=dim) for make in coattention or []]
        if members:
            self.coattention = members[0] if len(members) == 1 else CoAttentionEnsemble(*members)
        width = dim * max(1, len(members))
        self.query = nn.Linear(width, dim) if hops else None
        self.hops = hops(dim=dim) if hops else None
        self.looks_by_hops_alone = bool(hops) and not members
        joint = (1 if self.looks_by_hops_alone else 2) * width + (dim if hops else 0)
        self.head = nn.Sequential(
            nn.LayerNorm(joint),
            nn.Linear(joint, 2 * dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * dim, answers),
        )

    def forward(self, image: Images, question: Question) -> Float[Tensor, "q k"]:
        words, seen = self._read(image, question)
        of_words, of_image = self._contexts(words, seen)
        parts = [of_words] if self.looks_by_hops_alone else [of_words, of_image]
        if self.hops is not None and self.query is not None:
            query = self.query(of_words).unflatten(0, (len(image), -1))
            parts.append(self.hops(query, seen.keys).flatten(0, 1))
        return self.head(torch.cat(parts, dim=1))

    def _read(self, image: Images, question: Question) -> tuple[Memory, Memory]:
        """Read each image once, and each distinct question of several about an image."""
        if len(image) == 0 or len(question) % len(image):
            raise ValueError(
                f"expected the same number of questions about each image, got {len(question)} "
                f"questions about {len(image)} images"
            )
        seen = self.image_encoder(image)
        if len(question) == len(image) or (self.training and self.question_encoder.dropout.p):
            return self.question_encoder(question), seen
        distinct, of = question.unique(dim=0, return_inverse=True)
        words = self.question_encoder(distinct)
        return Memory(*(x.index_select(0, of) for x in words)), seen

    def _contexts(
        self, words: Memory, seen: Memory
    ) -> tuple[Float[Tensor, "q d"], Float[Tensor, "q d"]]:
        """The contexts of each question (q d) and of its image (q d)."""
        seen = _repeated(seen, len(words.tokens))
        if self.coattention is None:
            return words.summary, seen.summary
        return self.coattention(words.tokens, seen.keys, words.exists, seen.exists)

    def looks(self, image: Images, question: Question) -> Looks:
        """The weights of each look; none where the network has neither co-attention nor hops.

        Args:
            image: (b 3 h w).
            question: Words, (q i).
        """
        words, seen = self._read(image, question)
        size = (image.shape[-2], image.shape[-1])
        over_words = words.tokens.new_zeros(len(question), 0, question.size(1))
        over_image = [seen.keys.new_zeros(len(question), 0, seen.keys.size(1))]
        if isinstance(self.coattention, CoAttention):
            of_each = _repeated(seen, len(question))
            pair = self.coattention.weights(
                words.tokens, of_each.keys, words.exists, of_each.exists
            )
            over_words, found = (x[:, None] if x.ndim == 2 else x for x in pair)
            over_image.append(found)
        if self.hops is not None and self.query is not None:
            query = self.query(self._contexts(words, seen)[0]).unflatten(0, (len(image), -1))
            weights = self.hops.weights(query, seen.keys)  # image hop question n
            over_image.append(weights.transpose(1, 2).flatten(0, 1))
        return Looks(over_words, self.image_encoder.maps(torch.cat(over_image, dim=1), size))


def _repeated(seen: Memory, questions: int) -> Memory:
    """The memory of the image of each question."""
    each = questions // len(seen.keys)
    return seen if each == 1 else Memory(*(x.repeat_interleave(each, 0) for x in seen))
