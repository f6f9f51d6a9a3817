"""The check of one network: its maps against what the network itself shows when it is disturbed.

Nothing here reads the recorder's or the tracer's findings but to compare them. torch's softmax and
attention are swapped for plain ones. Their weights must be those that were recorded. Then all
weights are set to 0 but those of one query of one call: what of the later calls' scores changes,
and whether the logits do, must be what the chain says of that query's token. A spot of the image
that is disturbed must change the token that lies there. At last the matrices are multiplied densely.

Axes: b images, head, i queries, j keys, n tokens.
"""

import itertools
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import catalogue
import formulas
import torch
from disturbance import after_of, disturb_bands, disturb_image, disturb_queries
from handwritten import Own
from plain import Plain
from torch import nn

from vision_attn.methods import AttentionGradCAM, LeGrad, QueryKey, RawAttention, Relevance, Rollout
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.methods.by_name import methods
from vision_attn.methods.legrad import blocks_of
from vision_attn.tokens import Path, record_attention
from vision_attn.tokens.outputs import class_logits
from vision_attn.tokens.path.chain import Attention
from vision_attn.tokens.path.path import find_path

SMALL = 4  # rows or columns
MANY, LARGEST = 400, 2000  # tokens of the input: of more, fewer formulas, or none, are computed
# What a call may say although the method fits the network: its maps have no gradient.
ALLOWED = re.compile(
    "it weighs its values by several maps at once|no gradient of the logits|"
    "the scores before its softmax are not known|blocks that all have the same tokens"
)
BLACK_BOX = {"IntegratedGradients", "Occlusion", "MaskedRegression", "LIME"}
BLACK_BOX |= {"RandomMap", "CentreGaussian", "EdgeMap"}


@dataclass
class Verdict:
    """What was found of one network.

    map: right, refused, wrong, crash or unchecked. why: the refusal, what is wrong, or the exception.
    part: why the map is of the last calls alone; empty: it is of all. errors are shares of the
    map's maximum. cam: of HiResCAM and GradCAM beside W f where the head is a mean and a linear
    layer; None where it is not.
    """

    map: str = ""
    why: str = ""
    part: str = ""
    far: str = ""
    calls: int = 0
    tokens: int = 0
    compared: int = 0  # calls whose weights were found by the plain softmax too
    disturbed: int = 0  # queries that were
    error64: float | None = None
    error32: float | None = None
    batch: float | None = None
    cam: float | None = None
    maps: dict[str, str] = field(default_factory=dict)  # by method: map, empty, or the refusal
    formulas: dict[str, float | None] = field(
        default_factory=dict
    )  # by method: error beside its formula
    faults: list[str] = field(default_factory=list)


def sharp(network: Any, images: torch.Tensor) -> Any:
    """Make queries and keys large, and branches count that begin at 0, so that mistakes show."""
    for name, weight in network.named_parameters():
        if not weight.is_floating_point():
            continue
        if weight.ndim > 1 and weight.shape[-1] > 1 and re.search(
            r"\b(qkv?|kv?|mix|to_qkv?|to_kv?|query|key|[qk]v?_proj|queries|keys)\b|in_proj|query_key", name
        ):  # fmt: skip
            weight.data *= (3 / weight[0].numel()) ** 0.5 / weight.std().clamp(min=1e-6)
        elif re.search("gamma|ls1|ls2|lambda|layer_scale", name):
            weight.data.fill_(0.5)
        elif weight.ndim == 1 and name.endswith("weight") and not weight.any():
            weight.data.fill_(1.0)
        elif weight.ndim == 1 and name.endswith("bias"):
            weight.data += 0.05 * torch.randn_like(weight)
        elif weight.ndim > 1 and (not weight.any() or re.match("head|classifier|fc", name)):
            weight.data.normal_(std=0.3 if weight.ndim == 2 else 0.05)
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:  # so that batch norms normalise, and something reaches the attention
        with suppress(Exception), torch.no_grad():
            network(images)
    for norm in norms:
        norm.running_var.clamp_(min=1e-2) if norm.running_var is not None else None
    return network.eval()


class TooMuchError(Exception):
    """A network of the catalogue is not tried; found: what is said of it."""

    def __init__(self, map: str, why: str) -> None:
        super().__init__(why)
        self.found = {"map": map, "why": why}


def built(entry: Any, most: float = float("inf")) -> tuple[Any, torch.Tensor]:
    """Build a network of the catalogue in float64, with two images (2 3 h w) on which it runs.

    most: parameters, as published and as built, beyond which it is left out.
    """
    if entry.source == "timm" and most < float("inf"):
        published = catalogue.parameters_of_timm(entry.name.removeprefix("timm:"))
        if published > most:
            raise TooMuchError("left out", f"{published / 1e6:.0f} million parameters")
    torch.manual_seed(3)
    try:
        network, sizes = entry.build()
    except Exception as error:
        absent = "does not support an attention implementation" in str(error)
        why = "has no such attention" if absent else f"{type(error).__name__}: {error}"[:300]
        raise TooMuchError("left out" if absent else "not built", why) from error
    network = network.eval().double()
    count = sum(x.numel() for x in network.parameters())
    if count > most:
        raise TooMuchError("left out", f"{count / 1e6:.0f} million parameters")
    for size in sizes:
        images = torch.randn(2, 3, *size, dtype=torch.float64)
        try:
            with torch.no_grad():
                out = network(images)
            logits = getattr(out, "logits", out)
            assert tuple(logits.shape[:-1]) == (2,), "it gives no logits (images classes)"
            return network, images
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:300]
    raise TooMuchError("not built", f"it does not run: {why}")


def tried(entry: Any, most: float = float("inf"), check: bool = True) -> dict[str, Any]:
    """Build a network of the catalogue, run it and judge it: what was found, as a dictionary.

    most: as of `built`. check: False asks only whether there is a map, and compares nothing.
    """
    try:
        network, images = built(entry, most)
    except TooMuchError as error:
        return error.found
    found = judge(network, images) if check else probed(network, images)
    if isinstance(network, Own) and found.map == "right":
        error = off(Rollout()(network, images).values.double(), network.dense_rollout(images))
        if not error < 3e-6:
            found.map, found.why = "wrong", f"{error:.1e} off the weights of its own"
    count = sum(x.numel() for x in network.parameters())
    return asdict(found) | {"parameters": count, "size": list(images.shape[2:])}


def judge(network: Any, images: torch.Tensor) -> Verdict:
    """Check a float64 network on two images (2 3 h w)."""
    verdict = Verdict()
    network = sharp(network.eval(), images)
    try:
        _judge_path(network, images, verdict)
    except Exception as error:
        fault(verdict, "path", error)
    _run_methods(network, images, verdict)
    with suppress(NotImplementedError):
        verdict.cam = cam_error(network, images, verdict)
    if verdict.faults:
        verdict.map = "crash" if any("crashed" in one for one in verdict.faults) else "wrong"
        verdict.why = "; ".join(verdict.faults)
    return verdict


def probed(network: Any, images: torch.Tensor) -> Verdict:
    """Ask whether there is a map: unchecked, or refused."""
    path = find_path(network, images)
    if path.refusal:
        return Verdict("refused", path.refusal, calls=len(path.steps))
    assert path.layout is not None
    part, tokens = path.left_out or "", path.layout.tokens
    return Verdict("unchecked", part=part, calls=len(path.steps), tokens=tokens)


def fault(verdict: Verdict, what: str, error: Exception) -> None:
    line = str(error).strip().split("\n")[0][:300]
    verdict.faults.append(f"{what} crashed: {type(error).__name__}: {line}")


def _judge_path(network: Any, images: torch.Tensor, verdict: Verdict) -> None:
    with torch.no_grad():
        class_logits(network, images)
    path = find_path(network, images)
    verdict.calls = len(path.steps)
    if path.refusal:
        verdict.map, verdict.why = "refused", path.refusal
        seen = Plain()
        with torch.no_grad(), seen.running(network):
            network(images[:1])
        if "no attention was found" in path.refusal and seen.weights:
            shapes = sorted({str(tuple(x.shape[1:])) for x in seen.weights})
            verdict.why += f" [softmaxes seen: {', '.join(shapes)[:120]}]"
        return
    if path.layout is None:
        verdict.map, verdict.why = "refused", "where its tokens lie is not known"
        return
    verdict.map, verdict.tokens = "right", path.layout.tokens
    verdict.part = path.left_out or ""
    chain, matched = compared_weights(network, images, path, verdict)
    disturb_queries(network, images[:1], path, chain, matched, verdict)
    judge_places(network, images[:1], path, chain, matched, verdict)
    true = path.layout.to_map(dense_rollout(chain, len(images)))
    found = Rollout()(network, images)
    verdict.error64 = off(found.values.double(), true)
    singles = torch.cat([Rollout()(network, image[None]).values for image in images])
    verdict.batch = off(found.values, singles)
    if not verdict.error64 < 3e-6:
        verdict.faults.append(f"Rollout is {verdict.error64:.1e} off the dense matrices")
    if not verdict.batch < 1e-5:
        verdict.faults.append(f"Rollout of a batch is {verdict.batch:.1e} off its single images")
    judge_formulas(network, images, chain, matched, verdict)
    assert found.prefix_mass is not None
    total = found.values.sum((1, 2)) + found.prefix_mass
    if not (total - 1).abs().max() < 1e-4:
        verdict.faults.append(f"Rollout sums to {total.tolist()}")


def judge_formulas(
    network: Any,
    images: torch.Tensor,
    chain: Any,
    matched: dict[int, tuple[int, Any]],
    verdict: Verdict,
) -> None:
    """Judge the maps of single calls, and those that gradients weigh, by their dense formulas."""
    attentions = [link for link in chain.links if isinstance(link, Attention)]
    first = chain.links[0].before
    if len(matched) < len(attentions) or first > LARGEST:
        return
    maps, count = formulas.plain_maps(network, images, chain, matched), len(images)
    layers = sorted({0, len(attentions) // 2, len(attentions) - 1})
    layers = layers if first <= MANY else layers[-1:]
    for layer in layers:
        row = formulas.raw_attention(chain, maps, layer, count)
        compare(RawAttention(layer=layer), row, network, images, chain, verdict)
    links, tokens = formulas.before_the_pool(chain)
    if links and (inner := [one for one in links if isinstance(one, Attention)]):
        short = replace(chain, links=links, tokens=tokens, reads=None)
        means = {at: A.mean(1) for at, A in maps.weights.items()}
        asked = formulas.token_asked_for(short, images.shape[2:])
        for layer in sorted(
            {inner[-1].layer, inner[0].layer if first <= MANY else inner[-1].layer}
        ):
            rows = formulas.of_one_call(short, layer, means[layer], means, count)
            compare(QueryKey(layer=layer), rows[:, asked], network, images, chain, verdict)
        link = inner[-1]
        if link.whole and link.before == first and link.layer in maps.scores:
            scores = maps.scores[link.layer].mean(1)[:, asked]
            method = QueryKey(layer=link.layer, kind="scores")
            compare(method, scores, network, images, chain, verdict)
    row = formulas.attention_grad_cam(chain, maps, layers[-1], count)
    compare(AttentionGradCAM(layer=layers[-1]), row, network, images, chain, verdict)
    row = formulas.relevance_map(chain, maps, count)
    compare(Relevance(), row, network, images, chain, verdict)
    if LeGrad().refusal_for(network, images) is None:
        blocks = blocks_of(network)
        last = min(2, len(blocks))
        method = LeGrad(start_layer=len(blocks) - last)

        def row() -> Any:
            return formulas.legrad(network, images, blocks, chain, matched, last)

        compare(method, row, network, images, chain, verdict)


def compare(
    method: AttentionExplainer,
    row: Callable[..., Any],
    network: Any,
    images: torch.Tensor,
    chain: Any,
    verdict: Verdict,
) -> None:
    """Compare a method's maps with a row over the input tokens (b n), or with what gives it.

    What gives it is asked only where the method makes a map.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = method(network, images, 1)
        except ValueError as error:
            verdict.formulas[str(method)] = None
            if method.refusal_for(network, images) is None and not ALLOWED.search(str(error)):
                verdict.faults.append(f"{method} is refused in the call: {str(error)[:150]}")
            return
    true = chain.layout.to_map(row() if callable(row) else row)
    error = off(found.values.double(), true)
    verdict.formulas[str(method)] = error
    if not error < 3e-6:
        verdict.faults.append(f"{method} is {error:.1e} off its dense formula")


def judge_places(
    network: Any,
    image: torch.Tensor,
    path: Path,
    chain: Any,
    matched: dict[int, tuple[int, Any]],
    verdict: Verdict,
) -> None:
    """Judge where the tokens lie: by a spot at four places, or else by the order of all."""
    far = disturb_image(network, image, path, chain, matched)
    if far is None:
        return
    if min(chain.layout.grid) < SMALL:  # of few tokens noise may hide the order
        larger = torch.randn(1, 3, *(2 * side for side in image.shape[2:]), dtype=image.dtype)
        found = find_path(network, larger)
        if not found.refusal:
            chain, matched = compared_weights(network, larger, found, verdict)
            image, path = larger, found
    if wrong := disturb_bands(network, image, path, chain, matched):
        verdict.faults.append(f"{far}, and {wrong}")
    else:
        verdict.far = far


def off(found: torch.Tensor, true: torch.Tensor) -> float:
    return (
        ((found - true).abs().amax((1, 2)) / true.abs().amax((1, 2)).clamp(min=1e-12)).max().item()
    )


def compared_weights(
    network: Any, images: torch.Tensor, path: Path, verdict: Verdict
) -> tuple[Any, dict[int, tuple[int, Any]]]:
    """The chain with its calls, and for each call its place among the plain softmaxes, if found."""
    plain = Plain()
    with torch.no_grad():
        before = class_logits(network, images)
        with record_attention(network) as record:
            during = class_logits(network, images)
        with plain.running(network):
            after = class_logits(network, images)
    scale = before.abs().max().clamp(min=1e-6)
    if not (during - before).abs().max() < 1e-8 * scale:
        verdict.faults.append("recording changes the logits")
    if not (after - before).abs().max() < 1e-6 * scale:
        verdict.faults.append("the plain softmaxes do not give the network's logits")
    for call in record.calls:
        if call.v is None or call.context is None:
            continue
        context = call.weights() @ call.v
        if (
            context.shape == call.context.shape
            and off(context.flatten(0, 1), call.context.flatten(0, 1)) > 1e-6
        ):
            verdict.faults.append(f"the weights of {call.module} do not give its context")
    calls = path.counted(record.calls, len(images), network)
    chain = path.chain_for(calls, None, len(images))
    matched: dict[Any, Any] = {}
    for at, call in enumerate(calls):
        weights = call.weights()
        for place, other in enumerate(plain.weights):
            if place in [known for known, _ in matched.values()]:
                continue
            order = arrangement(other, weights)
            if order is not None:
                matched[at] = (place, order)
                break
    verdict.compared = len(matched)
    return chain, matched


def arrangement(plain: Any, weights: Any) -> tuple[int, ...] | None:
    """The order of a plain weights' axes in which they are the recorded; None: they are not."""
    if plain.numel() != weights.numel() or plain.ndim not in (3, 4, 5):
        return None
    axes = range(plain.ndim)
    for order in [tuple(axes), *itertools.permutations(axes)]:
        moved = plain.permute(order)
        if moved.shape[-2:] != weights.shape[-2:]:
            continue
        exact = plain.dtype == torch.float64  # a softmax may be asked for in float32
        moved = moved.reshape(weights.shape).double()
        if torch.allclose(moved, weights.double(), *((1e-6, 1e-9) if exact else (1e-4, 1e-7))):
            return order
    return None


def dense_rollout(chain: Any, images: int) -> Any:
    """The shares of the first tokens (b n): the product of dense matrices."""
    rows = chain.seed(images, torch.device("cpu"), torch.float64)
    for link in reversed(chain.links):
        n = link.before
        matrix = torch.zeros(images, after_of(link), n + 1, dtype=torch.float64)
        if isinstance(link, Attention):
            assert link.call is not None
            fused = link.call.weights().double().mean(1).clamp(min=0)
            total = fused.sum(-1, keepdim=True)
            if fused.shape[1] == fused.shape[2]:  # a query that attends to nothing keeps its share
                fused = torch.where(total == 0, torch.eye(fused.shape[1]).to(fused), fused)
            fused = (fused / fused.sum(-1, keepdim=True)).nan_to_num(0)
            windows = len(link.queries)
            for image, window in itertools.product(range(images), range(windows)):
                part = fused[image * windows + window]
                columns, keys = part.shape[1], link.keys[window]
                if link.new is None:
                    real = link.queries[window] < n
                    made = link.queries[window][real]
                    spread = torch.zeros(len(made), n + 1, dtype=torch.float64)
                    spread.index_add_(1, keys, part[real][:, :columns])
                    matrix[image, made] = 0.5 * spread
                else:
                    spread = torch.zeros(len(part), n + 1, dtype=torch.float64)
                    spread.index_add_(1, keys, part)
                    matrix[image, link.new[window]] += spread
            if link.new is None:
                own = torch.ones(n, dtype=torch.float64)
                own[link.queries[link.queries < n]] = 0.5
                matrix[:, :, :-1] += torch.diag(own)
            elif link.kept:
                matrix[:, :n, :n] += torch.eye(n, dtype=torch.float64)
        else:
            matrix[:, link.made, link.of] += link.part
        rows = rows @ matrix[..., :-1]
    return rows[:, 0]


def _run_methods(network: Any, images: torch.Tensor, verdict: Verdict) -> None:
    for name, method in methods().items():
        if name in BLACK_BOX:
            continue
        method = method()
        try:
            if reason := method.refusal_for(network, images):
                verdict.maps[name] = f"refused: {reason}"
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = method(network, images, 1).values
            verdict.maps[name] = "map" if values.abs().max() > 0 else "empty"
        except ValueError as error:
            verdict.maps[name] = f"refused in the call: {str(error).splitlines()[0][:300]}"
        except Exception as error:
            fault(verdict, name, error)


def same_map(x: Any, features: torch.Tensor) -> bool:
    """Whether a map, its channels first or last, is features (b c h w)."""
    return any(torch.equal(turned, features) for turned in (x, x.permute(0, 3, 1, 2)))


def cam_error(network: Any, images: torch.Tensor, verdict: Verdict) -> float | None:
    """How far HiResCAM and GradCAM are from W f; None where the head is no mean and linear layer.

    By default GradCAM is read before a norm of each place: it is asked for that norm's own map.
    """
    last: list[Any]
    maps, last, normed = [], [], []
    names = {module: name for name, module in network.named_modules()}

    def keep(module: Any, args: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.ndim == 4 and out.shape[2:].numel() > 1:
            maps.append(out.detach())
            if "LayerNorm" in type(module).__name__:
                normed.append((names[module], maps[-1]))
        if isinstance(module, nn.Linear) and args[0].ndim == 2:
            last[:] = [module, args[0].detach(), out.detach(), len(maps)]

    hooks = [module.register_forward_hook(keep) for module in network.modules()]
    try:
        with torch.no_grad():
            logits = class_logits(network, images)
    finally:
        for hook in hooks:
            hook.remove()
    if not last or last[2].shape != logits.shape or not torch.allclose(last[2], logits):
        return None
    module, pooled, _, count = last
    for features in reversed(maps[:count]):
        for turned in (features, features.permute(0, 3, 1, 2)):
            if turned.shape[:2] == pooled.shape and torch.allclose(turned.mean((2, 3)), pooled):
                each = module.weight[1, :, None, None] * turned / turned[0, 0].numel()
                true = each.sum(1).relu()
                if true.max() < 1e-9:
                    return None
                errors = []
                norm = next((at for at, x in reversed(normed) if same_map(x, turned)), None)
                for name, layer in (("GradCAM", norm), ("HiResCAM", None)):
                    try:
                        make: Any = methods()[name]
                        method = make(layer=layer)
                        found = method(network, images, 1).values.double()
                    except ValueError:
                        continue
                    same = found.shape == true.shape
                    errors.append(off(found, true) if same else float("inf"))
                if errors and not max(errors) < 1e-4:
                    verdict.faults.append(f"GradCAM, HiResCAM: {errors} off the formula of CAM")
                return max(errors, default=None)
    return None
