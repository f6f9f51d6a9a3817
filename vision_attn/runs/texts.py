"""Which words of a class matter: the tokens of its texts, shared out as LibraGradient does.

Axes: n texts of the class, t tokens, d width of a token's vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import eval_mode, frozen_parameters, infer
from vision_attn.models.image_text import ImageTextModel
from vision_attn.runs.explain import Photo, prepare, read
from vision_attn.tokens.gradients.mode import HeldGradients
from vision_attn.types import Model

__all__ = ["TokenAttribution", "token_attribution"]

BAR = 24  # characters of the longest


@dataclass(frozen=True)
class TokenAttribution:
    """What each token of a class's texts adds to an image's logit; printed, a bar a token.

    Attributes:
        class_name: The class.
        tokens: Of all its texts, one after the other; the padding of a text, where the network
            reads it, is one token `padding`.
        values: What each token adds.
        rest: What positions and biases add.
        logit: Values and rest together.

    Examples:
        >>> from vision_attn.runs.texts import TokenAttribution
        >>> print(TokenAttribution("a dog", ["a", "dog"], [-0.5, 2.0], rest=0.25, logit=1.75))
        a dog: logit 1.75 = tokens 1.50 + rest 0.25
          a    -0.50 ------
          dog  +2.00 ++++++++++++++++++++++++
    """

    class_name: str
    tokens: Sequence[str]
    values: Sequence[float]
    rest: float
    logit: float

    def __str__(self) -> str:
        """A line for the sum, and one for each token."""
        largest = max(map(abs, self.values)) or 1.0
        width = max(map(len, self.tokens))
        lines = [
            f"{self.class_name}: logit {self.logit:.2f} = tokens {sum(self.values):.2f} + rest "
            f"{self.rest:.2f}"
        ]
        for token, value in zip(self.tokens, self.values, strict=True):
            bar = ("+" if value >= 0 else "-") * round(BAR * abs(value) / largest)
            lines.append(f"  {token:{width}}  {value:+.2f} {bar}".rstrip())
        return "\n".join(lines)


@checked()
def token_attribution(
    model: Model, image: Photo, target: int | str | None = None
) -> TokenAttribution:
    """Share out a photo's logit of one class among the tokens of that class's texts.

    sum_d e_d ds / de_d for the vector e of each token, s the logit, where the divisors of norms,
    the weights of attention and what gates a value are constants in the backward pass (LibraGrad,
    Mehri et al. 2025): the shares of all tokens and those of positions and biases are s.

    Args:
        model: A model of `load_model` whose classes are given in words.
        image: A path, PIL image, array or tensor, as `explain` takes it.
        target: The class, by its index or name; None: the predicted one.

    Returns:
        The tokens, and the share of each.

    Raises:
        ValueError: The model compares no texts, or has no such class.

    Examples:
        ```python
        spec = "hf:openai/clip-vit-base-patch32"
        model = vision_attn.load_model(spec, classes=["a dog", "a cat"])
        print(vision_attn.token_attribution(model, "photo.jpg", "a dog"))
        ```
    """
    network = model.network
    if not isinstance(network, ImageTextModel):
        raise ValueError(
            f"{model.name or type(network).__name__} compares images with no texts: expected a "
            "model that was loaded with classes in words, such as CLIP or SigLIP"
        )
    images = prepare(model, [read(image, model.preprocess)[1]])
    with apart():
        logits = infer(network, images)[0]
        features = infer(network.image, images)[0]
    index = int(logits.argmax()) if target is None else model.class_index(target)
    tower, name = network.texts, network.classes[index]
    inputs = tower.tokenize(network.prompts[name])
    leaves: list[Tensor] = []

    def take(_module: nn.Module, _inputs: tuple[object, ...], vectors: Tensor) -> Tensor:
        leaves[:] = [vectors.detach().requires_grad_()]
        return leaves[0]

    with apart(), eval_mode(tower.model), frozen_parameters(tower.model), Hooks() as hooks:
        hooks.after(tower.embedding, take)
        with HeldGradients():
            texts = tower.encode(inputs).to(features.device)
            mean = (texts / texts.norm(dim=-1, keepdim=True)).mean(0)
            direction = features / features.norm()
            logit = network.scale * (direction @ (mean / mean.norm())) + network.bias
        (gradient,) = torch.autograd.grad(logit, leaves[0])
    shares = (leaves[0].detach() * gradient).sum(-1).double().cpu()
    tokens, values = [], []
    for pieces, row in zip(tower.pieces(inputs), shares.tolist(), strict=True):
        named = [(piece, value) for piece, value in zip(pieces, row, strict=True) if piece]
        padding = sum(value for piece, value in zip(pieces, row, strict=True) if not piece)
        if padding:
            named.append(("padding", padding))
        tokens += [piece for piece, _ in named]
        values += [value for _, value in named]
    total = float(logit.detach())
    return TokenAttribution(name, tokens, values, total - sum(values), total)
