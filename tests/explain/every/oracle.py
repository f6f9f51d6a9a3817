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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from unittest.mock import patch

import catalogue
import torch
from handwritten import Own
from torch import nn
from torch.nn import functional as F

from vision_attn.explain import Rollout, record_attention
from vision_attn.explain.base import class_logits
from vision_attn.explain.methods import methods
from vision_attn.explain.propagation.chain import Attention
from vision_attn.explain.propagation.path import find_path

BLACK_BOX = {"IntegratedGradients", "Occlusion", "RandomMap", "CentreGaussian", "EdgeMap"}
SAMPLES = 12  # queries that are disturbed, over all calls
MIXERS = ("TalkingHeadAttn", "GPSA")  # mix the outputs of softmaxes before they weigh values


@dataclass
class Verdict:
    """What was found of one network.

    map: right, refused, wrong, crash or unchecked. why: the refusal, what is wrong, or the exception. part: why
    the map is of the last calls alone; empty: it is of all. errors
    are shares of the map's maximum. cam: of HiResCAM and GradCAM beside W f where the head is a
    mean and a linear layer; None where it is not.
    """

    map: str = ""
    why: str = ""
    part: str = ""
    calls: int = 0
    tokens: int = 0
    compared: int = 0  # calls whose weights were found by the plain softmax too
    disturbed: int = 0  # queries that were
    error64: float | None = None
    error32: float | None = None
    batch: float | None = None
    cam: float | None = None
    maps: dict[str, str] = field(default_factory=dict)  # by method: map, empty, or the refusal
    faults: list[str] = field(default_factory=list)


class Plain:
    """torch's softmax and attention, plain; `replace(at, weights)` may change the weights."""

    def __init__(self, replace: Callable | None = None):
        self.disturbs = replace is not None
        self.replace = replace or (lambda at, weights: weights)
        self.scores, self.weights, self.mixed = [], [], []
        self.softmax = torch.softmax

    def of(self, scores, dim):
        weights = self.softmax(scores, dim)
        if scores.ndim < 3 or dim is None:
            return weights
        self.scores.append(scores.detach())
        self.weights.append(weights.detach())
        return weights if self.mixed else self.replace(len(self.weights) - 1, weights)

    def softmaxed(self, input, dim=None, *_, dtype=None, **__):
        return self.of(input if dtype is None else input.to(dtype), dim)

    def attend(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
        enable_gqa=False,
    ):  # fmt: skip
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(times, -3) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        return self.of(scores, -1) @ value

    @contextmanager
    def running(self, network):
        """Swap while this is open; group norms become norms of each place, as they mix no tokens."""

        def places(x, groups, weight=None, bias=None, eps=1e-5):
            x = F.layer_norm(x.movedim(1, -1), x.shape[1:2], eps=eps).movedim(-1, 1)
            one = [1, -1, *[1] * (x.ndim - 2)]
            x = x if weight is None else x * weight.view(one)
            return x if bias is None else x + bias.view(one)

        mixers = [m for m in network.modules() if type(m).__name__ in MIXERS]
        hooks = []
        for module in mixers:
            made = 2 if type(module).__name__ == "GPSA" else 1
            hooks.append(module.register_forward_pre_hook(lambda *_: self.mixed.append(1)))

            def after(_, args, made=made):
                self.mixed.clear()
                del self.weights[-made:], self.scores[len(self.scores) - made + 1 :]
                self.weights.append(args[0].detach())
                return (self.replace(len(self.weights) - 1, args[0].nan_to_num(0)), *args[1:])

            hooks.append(module.attn_drop.register_forward_pre_hook(after))
        with (
            patch.object(F, "scaled_dot_product_attention", self.attend),
            patch.object(F, "softmax", self.softmaxed),
            patch.object(torch, "softmax", self.softmaxed),
            patch.object(torch.Tensor, "softmax", lambda x, *a, **k: self.softmaxed(x, *a, **k)),
            patch.object(F, "group_norm", places if self.disturbs else F.group_norm),
        ):
            try:
                yield self
            finally:
                for hook in hooks:
                    hook.remove()


def sharp(network, images):
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


def tried(entry, most=float("inf"), check=True):
    """Build a network of the catalogue, run it and judge it: what was found, as a dictionary.

    most: parameters, as published and as built, beyond which it is left out. check: False asks only
    whether there is a map, and compares nothing.
    """
    if entry.source == "timm" and most < float("inf"):
        published = catalogue.parameters_of_timm(entry.name.removeprefix("timm:"))
        if published > most:
            return {"map": "left out", "why": f"{published / 1e6:.0f} million parameters"}
    torch.manual_seed(3)
    try:
        network, sizes = entry.build()
    except Exception as error:
        absent = "does not support an attention implementation" in str(error)
        why = "has no such attention" if absent else f"{type(error).__name__}: {error}"[:300]
        return {"map": "left out" if absent else "not built", "why": why}
    network = network.eval().double()
    count = sum(x.numel() for x in network.parameters())
    if count > most:
        return {"map": "left out", "why": f"{count / 1e6:.0f} million parameters"}
    for size in sizes:
        images = torch.randn(2, 3, *size, dtype=torch.float64)
        try:
            with torch.no_grad():
                out = network(images)
            logits = getattr(out, "logits", out)
            assert tuple(logits.shape[:-1]) == (2,), "it gives no logits (images classes)"
            break
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:300]
    else:
        return {"map": "not built", "why": f"it does not run: {why}"}
    found = judge(network, images) if check else probed(network, images)
    if isinstance(network, Own) and found.map == "right":
        error = off(Rollout()(network, images).values.double(), network.dense_rollout(images))
        if not error < 3e-6:
            found.map, found.why = "wrong", f"{error:.1e} off the weights of its own"
    return asdict(found) | {"parameters": count, "size": list(size)}


def judge(network, images):
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


def probed(network, images):
    """Ask whether there is a map: unchecked, or refused."""
    path = find_path(network, images)
    if path.refusal:
        return Verdict("refused", path.refusal, calls=len(path.steps))
    return Verdict("unchecked", "", path.left_out or "", len(path.steps), tokens=path.layout.tokens)


def fault(verdict, what, error):
    line = str(error).strip().split("\n")[0][:300]
    verdict.faults.append(f"{what} crashed: {type(error).__name__}: {line}")


def _judge_path(network, images, verdict):
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
    disturb_image(network, images[:1], path, chain, matched, verdict)
    true = path.layout.to_map(dense_rollout(chain, len(images)))
    found = Rollout()(network, images)
    verdict.error64 = off(found.values.double(), true)
    singles = torch.cat([Rollout()(network, image[None]).values for image in images])
    verdict.batch = off(found.values, singles)
    if not verdict.error64 < 3e-6:
        verdict.faults.append(f"Rollout is {verdict.error64:.1e} off the dense matrices")
    if not verdict.batch < 1e-5:
        verdict.faults.append(f"Rollout of a batch is {verdict.batch:.1e} off its single images")
    total = found.values.sum((1, 2)) + found.prefix_mass
    if not (total - 1).abs().max() < 1e-4:
        verdict.faults.append(f"Rollout sums to {total.tolist()}")


def off(found, true):
    return (
        ((found - true).abs().amax((1, 2)) / true.abs().amax((1, 2)).clamp(min=1e-12)).max().item()
    )


def compared_weights(network, images, path, verdict):
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
    matched = {}
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


def arrangement(plain, weights):
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


def disturbed_run(network, image, matched, at=None, window=0, query=0):
    """Scores of every matched call and the logits, with all weights 0 but one query's of a call."""
    at_place = {place: (call, order) for call, (place, order) in matched.items()}

    def replace(place, weights):
        if place not in at_place:
            return weights
        call, order = at_place[place]
        none = torch.zeros_like(weights)
        if call == at:
            inside = none.permute(order)
            shape = inside.shape
            lead = inside.reshape(-1, *shape[-2:]).clone()
            source = weights.permute(order).reshape(-1, *shape[-2:])
            heads = len(lead) // windows_of[call]
            rows = slice(window * heads, (window + 1) * heads)
            lead[rows, query] = source[rows, query]
            back = [order.index(axis) for axis in range(len(order))]
            none = lead.view(shape).permute(back).contiguous()
        return none

    windows_of = disturbed_run.windows
    plain = Plain(replace)
    with torch.no_grad(), plain.running(network):
        logits = class_logits(network, image)
    scores = {
        call: plain.scores[place].permute(order).reshape(windows_of[call], -1, *[
            plain.scores[place].shape[axis] for axis in order[-2:]])
        for call, (place, order) in matched.items()
        if place < len(plain.scores) and plain.scores[place].ndim == len(order)
    }  # fmt: skip
    return scores, logits


def changed(after, before):
    """Where scores (window head i j) differ, over all heads (window i j)."""
    return (after - before).nan_to_num(0).abs().amax(1) > 1e-9


def disturb_queries(network, image, path, chain, matched, verdict):
    links = list(chain.links)
    attentions = {link.layer: link for link in links if isinstance(link, Attention)}
    if len(matched) < len(attentions):
        return
    disturbed_run.windows = {layer: len(link.queries) for layer, link in attentions.items()}
    base, logits = disturbed_run(network, image, matched)
    random = torch.Generator().manual_seed(1)
    each = max(1, SAMPLES // len(attentions))
    for layer, link in attentions.items():
        for _ in range(min(each, link.queries.numel())):
            window = int(torch.randint(len(link.queries), (1,), generator=random))
            query = int(torch.randint(link.queries.shape[1], (1,), generator=random))
            place = int(link.queries[window, query])
            if link.new is None and place == link.before:
                continue
            reach = torch.zeros(after_of(link), dtype=torch.bool)
            reach[place if link.new is None else int(link.new[window, query])] = True
            scores, out = disturbed_run(network, image, matched, layer, window, query)
            verdict.disturbed += 1
            fault = follow_reach(links, link, reach, scores, base, chain)
            read = reach_end(links, link, reach)
            if chain.reads is not None and fault is None:
                says = bool((read & (chain.reads > 0)).any())
                moved = bool((out - logits).abs().max() > 1e-9 * logits.abs().max())
                if says != moved:
                    fault = f"its token {'reaches' if moved else 'does not reach'} the logits"
            if fault:
                verdict.faults.append(f"query {query} of window {window} of call {layer}: {fault}")
                return


def after_of(link):
    if isinstance(link, Attention):
        new = 0 if link.new is None else link.new.numel()
        return (link.before if link.new is None or link.kept else 0) + new
    return int(link.made.max()) + 1


def carried(link, reach):
    if isinstance(link, Attention):
        if link.new is None:
            return reach
        kept = reach if link.kept else reach[:0]
        return F.pad(kept, (0, link.new.numel()))
    made = torch.zeros(after_of(link), dtype=torch.bool)
    made[link.made[reach[link.of]]] = True
    return made


def reach_end(links, start, reach):
    for link in links[links.index(start) + 1 :]:
        reach = carried(link, reach)
    return reach


def follow_reach(links, start, reach, scores, base, chain):
    """Compare what changed in each later call with where the chain says that the token is."""
    for link in links[links.index(start) + 1 :]:
        if isinstance(link, Attention) and link.layer in scores and link.layer not in reused(base):
            there = F.pad(reach, (0, 1))
            expected = there[link.queries][:, :, None] | there[link.keys][:, None, :]
            found = changed(scores[link.layer], base[link.layer])
            seen = (base[link.layer].abs() < 1e30).any(1)  # others are masked
            if found.shape == expected.shape and (found != (expected & seen)).any():
                return (
                    f"changes {int(found.sum())} scores of call {link.layer}, "
                    f"{int((found & ~expected).sum())} of them not of its token, and "
                    f"{int((expected & seen & ~found).sum())} of its token are the same"
                )
        reach = carried(link, reach)
    return None


def reused(scores):
    """The calls whose scores are an earlier call's, turned: they are of tokens as they were then."""
    return {
        at
        for at, own in scores.items()
        for before, other in scores.items()
        if before < at and other.mT.shape == own.shape and torch.equal(other.mT, own)
    }


def disturb_image(network, image, path, chain, matched, verdict):
    """The token that lies on a spot must change, and the others around it alone."""
    attentions = [link for link in chain.links if isinstance(link, Attention)]
    (h, w), size = chain.layout.grid, image.shape[2:]
    if len(matched) < len(attentions) or min(h, w) < 3:
        return
    base, _ = disturbed_run(network, image, matched)
    for y, x in {(0, 0), (h // 2, w // 2), (h - 1, w // 3), (h // 3, w - 1)}:
        spot = image.clone()
        top, left = (
            int((at + 0.5) * side / n) for at, side, n in zip((y, x), size, (h, w), strict=True)
        )
        spot[..., max(top - 1, 0) : top + 1, max(left - 1, 0) : left + 1] += 3.0
        scores, _ = disturbed_run(network, spot, matched)
        size_of = torch.zeros(chain.links[0].before, dtype=torch.float64)
        back = torch.arange(len(size_of))[None]  # the first tokens that went into each
        for link in chain.links:
            if isinstance(link, Attention):
                moved = (scores[link.layer] - base[link.layer]).nan_to_num(0).abs().amax(1)
                amount = moved.median(1).values  # window j: a changed query changes one of a column
                pairs = zip(link.keys.flatten().tolist(), amount.flatten().tolist(), strict=True)
                for token, value in pairs:
                    if token < back.shape[1]:
                        size_of[back[0, token]] = max(size_of[back[0, token]], value)
                break
            back = torch.stack(
                [back[0, link.of[link.made == at][0]] for at in range(after_of(link))]
            )[None]
        places = (
            torch.tensor(chain.layout.patches)
            if not isinstance(chain.layout.patches, slice)
            else torch.arange(len(size_of))[chain.layout.patches]
        )
        amounts = size_of[places].view(h, w)
        if amounts.max() <= 1e-9:
            if isinstance(chain.links[0], Attention) and chain.links[0].keys.numel() >= h * w:
                verdict.faults.append(f"a spot on patch {y, x} changes no score of the first call")
                return
            continue
        where = amounts / amounts.sum()
        row = float((where.sum(1) * torch.arange(h)).sum())
        column = float((where.sum(0) * torch.arange(w)).sum())
        reach = 1.0 + 0.2 * max(h, w) * float((amounts > 0.02 * amounts.max()).double().mean())
        if abs(row - y) > reach or abs(column - x) > reach:
            verdict.faults.append(
                f"a spot on patch {y, x} changes the tokens around ({row:.1f}, {column:.1f})"
            )
            return


def dense_rollout(chain, images):
    """The shares of the first tokens (b n): the product of dense matrices."""
    rows = chain.seed(images, torch.device("cpu"), torch.float64)
    for link in reversed(chain.links):
        n = link.before
        matrix = torch.zeros(images, after_of(link), n + 1, dtype=torch.float64)
        if isinstance(link, Attention):
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


def _run_methods(network, images, verdict):
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


def cam_error(network, images, verdict):
    """How far HiResCAM and GradCAM are from W f; None where the head is no mean and linear layer."""
    maps, last = [], []

    def keep(module, args, out):
        if isinstance(out, torch.Tensor) and out.ndim == 4 and out.shape[2:].numel() > 1:
            maps.append(out.detach())
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
                for name in ("GradCAM", "HiResCAM"):
                    try:
                        found = methods()[name]()(network, images, 1).values.double()
                    except ValueError:
                        continue
                    same = found.shape == true.shape
                    errors.append(off(found, true) if same else float("inf"))
                if errors and not max(errors) < 1e-4:
                    verdict.faults.append(f"GradCAM, HiResCAM are {errors} off the formula of CAM")
                return max(errors, default=None)
    return None
