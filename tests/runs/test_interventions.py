"""`intervene` against the same network with its attention, MLPs and tokens rewritten by hand."""

import copy
import threading
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import vision_attn
from vision_attn.attention import Additive, Local2d, MultiHeadAttention, Sparsemax
from vision_attn.data import Preprocess
from vision_attn.methods import Explainer, LibraGradient, Rollout
from vision_attn.models import ViT
from vision_attn.tokens import record_attention
from vision_attn.types import Model

CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}


class ByHand(nn.Module):
    """Attention written out, whose heads and values are changed by what it is given."""

    def __init__(self, q: Any, k: Any, v: Any, out: Any, heads: int, bias: Any = None) -> None:
        super().__init__()
        self.parts, self.out, self.heads = (q, k, v), out, heads
        self.bias = bias
        self.change: dict[int, str] | None = None
        self.patch: Any = None
        self.removed: list[int] = []
        self.context: Any = None

    def forward(self, x: Any, *args: Any, mask: Any = None, **_: Any) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = (
            nn.functional.linear(x, *part).view(b, n, self.heads, -1).transpose(1, 2)
            for part in self.parts
        )
        v = v.clone()
        v[:, :, self.removed] = 0
        scores = q @ k.mT / (d // self.heads) ** 0.5
        seen = torch.ones(1, 1, n, n, dtype=torch.bool)
        if self.bias is not None:
            scores = scores + self.bias()
        if mask is not None:
            windows = mask.repeat(b // len(mask), 1, 1)[:, None]
            scores, seen = scores + windows, windows > -50
        weights = scores.softmax(-1)
        contexts = [weights[:, h] @ v[:, h] for h in range(self.heads)]
        self.context = [one.clone() for one in contexts]
        for head, kind in (self.change or {}).items():
            if kind == "zero":
                contexts[head] = contexts[head] * 0
            if kind == "mean":
                contexts[head] = contexts[head].mean(1, keepdim=True).expand(-1, n, -1)
            if kind == "uniform":
                equal = seen[:, 0].double() / seen[:, 0].sum(-1, keepdim=True)
                contexts[head] = equal.expand(b, -1, -1) @ v[:, head]
            if kind == "patch":
                contexts[head] = self.patch[head].repeat(b // len(self.patch[head]), 1, 1)
        return nn.functional.linear(torch.stack(contexts, 2).flatten(2), *self.out)


def linear(module: Any) -> tuple[Any, Any]:
    return module.weight, module.bias


class Pair(nn.Module):
    """Returns two values, as torchvision's and transformers' attention do."""

    def __init__(self, inner: ByHand) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        return self.inner(x), None


def of_qkv(attn: Any, heads: int, bias: Any = None) -> ByHand:
    weights = zip(attn.qkv.weight.chunk(3), attn.qkv.bias.chunk(3), strict=True)
    q, k, v = weights
    return ByHand(q, k, v, linear(attn.proj), heads, bias)


def timm_vit() -> tuple[nn.Module, int]:
    return timm.create_model("vit_tiny_patch16_224", img_size=48, depth=3, num_classes=5), 48


def own_vit() -> tuple[ViT, int]:
    return ViT(image_size=24, patch_size=8, num_classes=5, dim=12, depth=3, heads=3), 24


def swin(fused: bool) -> tuple[nn.Module, int]:
    network = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(2, 1), num_heads=(2, 3),
        embed_dim=12, num_classes=5,
    )  # fmt: skip
    for block in (*network.layers[0].blocks, *network.layers[1].blocks):
        block.attn.fused_attn = fused
    return network, 56


def torchvision_vit() -> tuple[Any, int]:
    return torchvision.models.VisionTransformer(24, 8, 3, 3, 12, 24, num_classes=5), 24


def huggingface(kind: str) -> tuple[Any, int]:
    config_of: Any = transformers.ViTConfig
    config = config_of(
        hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=24,
        image_size=24, patch_size=8, num_labels=5, attn_implementation=kind,
    )  # fmt: skip
    return transformers.ViTForImageClassification._from_config(config), 24


NETWORKS = {
    "timm": timm_vit,
    "own": own_vit,
    "torchvision": torchvision_vit,
    "transformers sdpa": lambda: huggingface("sdpa"),
    "transformers eager": lambda: huggingface("eager"),
    "swin": lambda: swin(False),
    "swin fused": lambda: swin(True),
}


def rewritten(name: Any, network: Any) -> tuple[Any, list[ByHand], list[Any]]:
    """A copy whose attention is `ByHand`, the list of it, and that of the last layers of MLPs."""
    network = copy.deepcopy(network)
    if name.startswith("swin"):
        blocks = [block for layer in network.layers for block in layer.blocks]
    elif name == "torchvision":
        blocks = list(network.encoder.layers)
    elif name.startswith("transformers"):
        blocks = list(network.vit.layers)
    else:
        blocks = list(network.blocks)
    attention, ends = [], []
    for block in blocks:
        if name == "torchvision":
            attn = block.self_attention
            weights = zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True)
            q, k, v = weights
            made = ByHand(q, k, v, linear(attn.out_proj), 3)
            block.self_attention = Pair(made)
        elif name.startswith("transformers"):
            attn = block.attention
            q, k, v = map(linear, (attn.q_proj, attn.k_proj, attn.v_proj))
            made = ByHand(q, k, v, linear(attn.o_proj), 3)
            block.attention = Pair(made)
        else:
            heads = getattr(block.attn, "num_heads", getattr(block.attn, "heads", 0))
            bias = block.attn._get_rel_pos_bias if name.startswith("swin") else None
            block.attn = made = of_qkv(block.attn, heads, bias)
        attention.append(made)
        ends.append(block.mlp[3] if name == "torchvision" else block.mlp.fc2)
    return network, attention, ends


def logits(network: ViT, images: torch.Tensor) -> Any:
    with torch.no_grad():
        out = network(images)
    return getattr(out, "logits", out)


@pytest.fixture(scope="module", params=NETWORKS)
def case(
    request: pytest.FixtureRequest,
) -> tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any]:
    """A network in float64, images, a photo to patch from, and the network by hand."""
    torch.manual_seed(3)
    network, size = NETWORKS[request.param]()
    network = network.eval().double()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    images, other = torch.randn(2, 3, size, size).double(), torch.randn(3, size, size).double()
    by_hand, attention, ends = rewritten(request.param, network)
    torch.testing.assert_close(logits(network, images), logits(by_hand, images), **CLOSE)
    return request.param, network, images, other, by_hand, attention, ends


@pytest.mark.parametrize("kind", ["zero", "mean", "uniform", "patch"])
def test_heads_are_replaced_as_by_hand(
    case: tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any], kind: str
) -> None:
    _, network, images, other, by_hand, attention, _ = case
    before = logits(network, images)
    logits(by_hand, other[None])
    attention[1].patch = attention[1].context
    heads = {(1, 1): kind, (0, -1): "mean"}
    attention[1].change = {1: kind}
    attention[0].change = {attention[0].heads - 1: "mean"}
    wanted = logits(by_hand, images)
    attention[1].change = attention[0].change = None
    with vision_attn.intervene(network, heads=heads, patch_from=other if kind == "patch" else None):
        changed = logits(network, images)
    torch.testing.assert_close(changed, wanted, **CLOSE)
    assert (changed - before).abs().min() > 1e-4
    assert torch.equal(logits(network, images), before)


def test_branches_add_nothing_as_by_hand(
    case: tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any],
) -> None:
    _, network, images, _, by_hand, attention, ends = case
    kept = [copy.deepcopy(module.state_dict()) for module in ends]
    outs = [attention[2].out]
    with torch.no_grad():
        for end in (ends[0], ends[2]):
            end.weight.zero_()
            end.bias.zero_()
    attention[2].out = tuple(torch.zeros_like(weight) for weight in attention[2].out)
    wanted = logits(by_hand, images)
    attention[2].out = outs[0]
    for module, state in zip(ends, kept, strict=True):
        module.load_state_dict(state)
    with vision_attn.intervene(network, mlps=[0], blocks=[-1]):
        torch.testing.assert_close(logits(network, images), wanted, **CLOSE)
    torch.testing.assert_close(logits(network, images), logits(by_hand, images), **CLOSE)


def test_values_of_tokens_are_removed_as_by_hand(
    case: tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any],
) -> None:
    name, network, images, _, by_hand, attention, _ = case
    if name.startswith("swin"):
        with pytest.raises(ValueError, match="those of layer 0 cannot be changed: it attends in w"):
            vision_attn.intervene(network, tokens=[(0, 3)]).__enter__()
        return
    for layer, removed in enumerate(([7], [7, 2], [7])):
        attention[layer].removed = removed
    wanted = logits(by_hand, images)
    for one in attention:
        one.removed = []
    with vision_attn.intervene(network, tokens=[7, (1, 2)]):
        torch.testing.assert_close(logits(network, images), wanted, **CLOSE)


BLOCKS = {
    "timm": "blocks",
    "own": "blocks",
    "torchvision": "encoder.layers",
    "transformers sdpa": "vit.layers",
    "transformers eager": "vit.layers",
}


def test_states_and_branches_of_another_photo_as_by_hand(
    case: tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any],
) -> None:
    name, network, images, other, by_hand, _, ends = case
    if name.startswith("swin"):
        return
    kept: dict[Any, Any]
    blocks, kept, handles = by_hand.get_submodule(BLOCKS[name]), {}, []
    keep = lambda key: lambda _m, _i, out: kept.__setitem__(key, out.clone())  # noqa: E731
    first, second = (
        blocks[0].register_forward_hook(keep("state")),
        ends[1].register_forward_hook(keep("mlp")),
    )
    logits(by_hand, other[None])
    first.remove(), second.remove()

    def states(_module: Any, _inputs: Any, out: Any) -> Any:
        out = out.clone()
        out[:, [0, 5]] = kept["state"][:, [0, 5]]
        return out

    handles.append(blocks[0].register_forward_hook(states))
    handles.append(ends[1].register_forward_hook(lambda _m, _i, out: kept["mlp"].expand_as(out)))
    wanted = logits(by_hand, images)
    for handle in handles:
        handle.remove()
    with vision_attn.intervene(network, tokens=[(1, 0), (1, 5)], mlps=[1], patch_from=other):
        torch.testing.assert_close(logits(network, images), wanted, **CLOSE)


def test_everything_of_another_photo_gives_its_logits(
    case: tuple[Any, Any, torch.Tensor, torch.Tensor, Any, Any, Any],
) -> None:
    name, network, images, other, *_ = case
    same = logits(network, other[None]).expand(2, -1)
    if name.startswith("swin"):
        with vision_attn.intervene(network, blocks=[2], patch_from=other):
            assert (logits(network, images) - same).abs().max() > 1e-3
        return
    with record_attention(network, keep=()) as record:
        logits(network, images)
    with vision_attn.intervene(network, tokens=range(record.calls[0].keys), patch_from=other):
        torch.testing.assert_close(logits(network, images), same, **CLOSE)


@pytest.mark.parametrize("made", ["v2", "v1"])
def test_torchvisions_swin_as_with_weights_of_zero(made: str) -> None:
    torch.manual_seed(5)
    of = torchvision.models.swin_transformer
    more = {"block": of.SwinTransformerBlockV2, "downsample_layer": of.PatchMergingV2}
    network = torchvision.models.SwinTransformer(
        [4, 4], 12, [2, 1], [2, 3], [7, 7], num_classes=5, **(more if made == "v2" else {})
    )
    network, images = network.eval().double(), torch.randn(2, 3, 56, 56).double()
    by_hand = copy.deepcopy(network)
    block = by_hand.features[1][1]
    with torch.no_grad():
        block.attn.proj.weight[:, 6:] = 0  # of the second of two heads
        end = by_hand.features[3][0].norm2 if made == "v2" else by_hand.features[3][0].mlp[3]
        end.weight.zero_()
        end.bias.zero_()
    with vision_attn.intervene(network, heads=[(1, 1)], mlps=[2]):
        torch.testing.assert_close(logits(network, images), logits(by_hand, images), **CLOSE)


SCORED = {
    "additive": {"score": Additive},
    "sparsemax": {"normalizer": Sparsemax},
    "local": {"window": lambda head_dim, heads: Local2d(radius=1)},
}


@pytest.mark.parametrize("options", SCORED.values(), ids=SCORED)
@pytest.mark.parametrize(
    "kind", ["mean", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("zero", "uniform"))]
)
def test_our_own_attention_of_any_score_and_window(options: dict[str, Any], kind: str) -> None:
    torch.manual_seed(7)
    attention = lambda dim, heads: MultiHeadAttention(dim, heads, **options)  # noqa: E731
    network = ViT(
        image_size=24, patch_size=8, num_classes=5, dim=12, depth=2, heads=3, attention=attention
    )
    network, images = network.eval().double(), torch.randn(2, 3, 24, 24).double()
    with record_attention(network) as record:
        plain = logits(network, images)
    call = record.calls[1]
    weights, v = call.weights(), call.v
    assert v is not None
    context = weights[:, 1] @ v[:, 1]
    if kind == "zero":
        context = context * 0
    if kind == "mean":
        context = context.mean(1, keepdim=True).expand(-1, 10, -1)
    if kind == "uniform":
        visible = torch.ones(10, 10).double()
        if "window" in options:
            rows, columns = torch.arange(9) // 3, torch.arange(9) % 3
            near = (rows[:, None] - rows).abs().le(1) & (columns[:, None] - columns).abs().le(1)
            visible[1:, 1:] = near.double()
        context = visible / visible.sum(-1, keepdim=True) @ v[:, 1]
    contexts = weights @ v
    contexts[:, 1] = context

    def put(module: Any, inputs: Any) -> tuple[torch.Tensor]:
        return (contexts.transpose(1, 2).flatten(2),)

    handle = network.blocks[1].attn.proj.register_forward_pre_hook(put)
    wanted = logits(network, images)
    handle.remove()
    with vision_attn.intervene(network, heads={(1, 1): kind}):
        changed = logits(network, images)
    torch.testing.assert_close(changed, wanted, **CLOSE)
    assert not torch.allclose(changed, plain, rtol=1e-6)


def small() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(2)
    return own_vit()[0].eval(), torch.randn(2, 3, 24, 24)


def hooks_of(network: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


def test_inner_changes_come_after_outer_ones() -> None:
    network, images = small()
    with vision_attn.intervene(network, heads={(1, 1): "zero"}, mlps=[0]):
        once = logits(network, images)
        with vision_attn.intervene(network, heads={(1, 1): "uniform", (2, 0): "zero"}):
            both = logits(network, images)
        assert torch.equal(logits(network, images), once)
    with vision_attn.intervene(network, heads={(1, 1): "uniform", (2, 0): "zero"}, mlps=[0]):
        torch.testing.assert_close(logits(network, images), both)


def test_an_error_leaves_nothing_behind() -> None:
    network, images = small()
    before = logits(network, images)
    with pytest.raises(KeyError), vision_attn.intervene(network, heads=[(0, 0)], blocks=[1]):
        raise KeyError
    with pytest.raises(RuntimeError), vision_attn.intervene(network, heads=[(0, 0)], mlps=[1]):
        network.blocks[1].attn(torch.randn(2, 3, 11))
    assert hooks_of(network) == 0
    assert torch.equal(logits(network, images), before)
    with vision_attn.intervene(network, heads=[(1, 0)], mlps=[1]):
        with pytest.raises(RuntimeError):
            network.blocks[1].attn(torch.randn(2, 3, 11))
        assert not torch.equal(logits(network, images), before)


def test_another_thread_sees_the_network_as_it_is() -> None:
    network, images = small()
    before, found = logits(network, images), []
    with vision_attn.intervene(network, heads=[(0, 0)], blocks=[2]):
        thread = threading.Thread(target=lambda: found.append(logits(network, images)))
        thread.start()
        thread.join()
        assert not torch.equal(logits(network, images), before)
    assert torch.equal(found[0], before)


@pytest.mark.parametrize("name", ["timm", "own", "transformers eager"])
def test_a_record_and_a_map_inside_are_of_the_changed_network(name: str) -> None:
    torch.manual_seed(4)
    network, size = NETWORKS[name]()
    network, images = network.eval(), torch.randn(2, 3, size, size)
    plain = Rollout()(network, images).values
    with vision_attn.intervene(network, heads={(0, 1): "zero"}, tokens=[(0, 2)], mlps=[1]):
        alone = logits(network, images)
        with record_attention(network) as record:
            torch.testing.assert_close(logits(network, images), alone)
        assert record.calls[0].context is not None
        assert not record.calls[0].context[:, 1].any()
        assert record.calls[0].context[:, 0].any()
        assert record.calls[0].v is not None
        assert not record.calls[0].v[:, :, 2].any()
        changed = Rollout()(network, images).values
    with record_attention(network) as outer, vision_attn.intervene(network, heads=[(0, 1)]):
        logits(network, images)
    assert len(outer.calls) == 3
    assert not torch.allclose(plain, changed)
    torch.testing.assert_close(Rollout()(network, images).values, plain)


@pytest.mark.parametrize("method", [Rollout(), LibraGradient()])
def test_what_is_remembered_of_a_network_is_found_on_the_network_as_it_is(
    method: Explainer,
) -> None:
    network, images = small()
    wanted = method(copy.deepcopy(network), images, target=1).values
    with vision_attn.intervene(network, heads={(1, 1): "zero"}, tokens=[(0, 3)], blocks=[2]):
        changed = method(network, images, target=1).values
    torch.testing.assert_close(method(network, images, target=1).values, wanted)
    assert not torch.allclose(changed, wanted)


def test_a_run_inside_a_hook_of_another_leaves_it_its_changes() -> None:
    network, images = small()
    with vision_attn.intervene(network, heads=[(2, 1)], blocks=[1]):
        inner: list[Any]
        wanted, inner = logits(network, images), []

        def hook(*_: Any) -> None:
            if not inner:
                inner.append("begun")
                inner.append(logits(network, images))

        handle = network.blocks[0].register_forward_hook(hook)
        torch.testing.assert_close(logits(network, images), wanted)
        handle.remove()
    torch.testing.assert_close(inner[1], wanted)


def test_it_opens_in_inference_mode() -> None:
    network, images = small()
    with torch.inference_mode(), vision_attn.intervene(network, mlps=[1]):
        inside = network(images)
    with vision_attn.intervene(network, mlps=[1]):
        torch.testing.assert_close(logits(network, images), inside)


def test_gradients_pass() -> None:
    network, images = small()
    with vision_attn.intervene(network, heads={(1, 2): "zero"}, mlps=[2]):
        out = network(images.requires_grad_())
        out.sum().backward()
    grad = network.blocks[1].attn.proj.weight.grad
    assert not grad[:, 8:].any()
    assert grad[:, :8].any()
    assert (
        network.blocks[2].mlp.fc2.weight.grad is None
        or not network.blocks[2].mlp.fc2.weight.grad.any()
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"heads": [(3, 0)]}, "heads: no layer 3: there are 3 layers, 0 to 2, of 3 heads, 0 to 2"),
        (
            {"heads": [(0, 3)]},
            "heads: no head 3 in layer 0: there are 3 layers, 0 to 2, of 3 heads",
        ),
        ({"heads": [4]}, r"heads: expected \(layer, head\), got 4: there are 3 layers"),
        ({"heads": {(0, 1): "none"}}, "heads: expected zero, mean, uniform, patch, got 'none'"),
        ({"heads": {(0, 1): "patch"}}, "needs the photo that it is taken from: give patch_from"),
        ({"mlps": [True]}, r"mlps: expected .*, got \[True\]"),
        ({"mlps": "all"}, "mlps: expected .*, got 'all'"),
        ({"blocks": [-4]}, "blocks: no layer -4: there are 3 layers"),
        ({"tokens": [7000]}, "tokens: no token 7000 in layer 0: expected 0 to 784"),
        ({"tokens": [(0, 1, 2)]}, r"tokens: expected .*, got \[\(0, 1, 2\)\]"),
        ({"patch_from": "cat.png"}, r"patch_from: expected the tensor \(c, h, w\) of one image"),
    ],
)
def test_what_does_not_exist_is_told_in_a_line(asked: dict[str, Any], said: str) -> None:
    network, _ = small()
    with pytest.raises(ValueError, match=said) as error, vision_attn.intervene(network, **asked):
        pass
    assert "\n" not in str(error.value)


def test_networks_without_attention_or_branches_say_so() -> None:
    with pytest.raises(ValueError, match="no attention call was seen"):
        vision_attn.intervene(nn.Sequential(nn.Conv2d(3, 2, 3)), heads=[(0, 0)]).__enter__()
    parallel = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3)
    parallel.blocks[1].norm2 = nn.Identity()
    parallel.blocks[1].mlp = nn.Identity()
    block = parallel.blocks[1]
    block.forward = lambda x: block.attn(block.norm1(x))
    with pytest.raises(ValueError, match=r"mlps: layer 1 has no such branch .* with one: 0$"):
        vision_attn.intervene(parallel, mlps=[1]).__enter__()


def test_a_model_takes_photos() -> None:
    network, _ = small()
    model = Model(network, Preprocess((24, 24), (0.5,) * 3, (0.5,) * 3), [], None)
    photo = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8)
    images = model.preprocess(torchvision.transforms.functional.to_pil_image(photo))[None]
    wanted = logits(network, images)
    with vision_attn.intervene(model, tokens=range(10), patch_from=photo):
        torch.testing.assert_close(logits(network, torch.randn(1, 3, 24, 24)), wanted)
