"""Encoder-decoders: their formulas, padding, order, caches, and the two ways of writing."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn import attention as att
from vision_attn.models import build, describe
from vision_attn.sequences import (
    ConvEncoder,
    RecurrentEncoder,
    SelfAttentionEncoder,
    Seq2Seq,
    SequenceModel,
    Transformer,
    ViTEncoder,
    beam,
    greedy,
)
from vision_attn.sequences.models.encoders import Encoder, Memory
from vision_attn.types import PAD, START, STOP

S, K, D = 17, 11, 12
RNN = partial(RecurrentEncoder, symbols=S, longest=13)
LSTM = partial(RecurrentEncoder, symbols=S, longest=13, cell="lstm")
SELF = partial(SelfAttentionEncoder, symbols=S, longest=13, depth=2, heads=3)

MODELS: dict[str, Any] = {
    "additive": partial(Seq2Seq, K, RNN, D, longest=9),
    "none": partial(Seq2Seq, K, RNN, D, longest=9, score=None),
    "general lstm fed": partial(
        Seq2Seq, K, LSTM, D, longest=9, cell="lstm", score=att.General, input_feeding=True
    ),
    "sparsemax": partial(Seq2Seq, K, SELF, D, longest=9, normalizer=att.Sparsemax),
    "local-m": partial(Seq2Seq, K, RNN, D, longest=9, window=partial(att.LocalMonotonic, radius=2)),
    "local-p": partial(
        Seq2Seq, K, RNN, D, longest=9, score=att.Dot, window=partial(att.LocalPredictive, radius=3)
    ),
    "transformer": partial(Transformer, K, SELF, D, longest=9, depth=2, heads=3),
    "transformer on rnn": partial(Transformer, K, RNN, D, longest=9, depth=1, heads=2),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model(name: str) -> SequenceModel:
    torch.manual_seed(5)
    return MODELS[name]().eval()


def texts(*lengths: int, symbols: int = S, stop: bool = False) -> Tensor:
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(3, symbols, (length,))
        if stop:
            row[length - 1] = STOP
    return rows


@every_model
def test_step_by_step_is_all_at_once(name: str) -> None:
    network, source, target = model(name), texts(13, 5, 1), texts(7, 3, 7, symbols=K)
    whole, weights, _ = network.decode(network.read(source), network.shifted(target))
    assert torch.equal(network(source, target), whole)
    state = network.read(source)
    for step, symbols in enumerate(network.shifted(target).T):
        logits, looks, state = network.decode(state, symbols[:, None], step)
        torch.testing.assert_close(logits[:, 0], whole[:, step])
        torch.testing.assert_close(looks[:, 0], weights[:, step])


def without_cache(network: SequenceModel, source: Tensor) -> Tensor:
    """Greedy writing that computes everything anew at every step."""
    written = torch.empty(len(source), 0, dtype=torch.long)
    while written.size(1) < network.longest:
        target = torch.cat([written, torch.zeros_like(written[:, :1]).new_zeros(len(source), 1)], 1)
        logits = network(source, target)[:, -1]
        logits[:, [PAD, START]] = -torch.inf
        over = ((written == STOP) | (written == PAD)).any(1)
        written = torch.cat([written, logits.argmax(1).where(~over, PAD)[:, None]], 1)
        if ((written == STOP) | (written == PAD)).any(1).all():
            break
    return written


@every_model
def test_writing_with_the_cache_is_writing_without(name: str) -> None:
    network, source = model(name), texts(13, 5, 1, 8)
    assert torch.equal(greedy(network, source), without_cache(network, source))


@every_model
def test_a_beam_of_one_is_greedy(name: str) -> None:
    network, source = model(name), texts(13, 5, 1, 8, 9)
    assert torch.equal(beam(network, source, width=1), greedy(network, source))


def log_probability(network: SequenceModel, source: Tensor, target: Tensor) -> Tensor:
    logits = network(source, target)
    logits[..., [PAD, START]] = -torch.inf
    return (
        logits.log_softmax(-1).gather(2, target[..., None])[..., 0].where(target != PAD, 0).sum(1)
    )


@pytest.mark.parametrize("make", [Seq2Seq, partial(Transformer, heads=3)])
def test_a_wide_beam_finds_the_best_of_all_targets(make: Any) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        network = make(6, RNN, D, longest=3).eval()
        network.head.weight.data *= 4  # clear preferences
        source = texts(5)
        endings = [(*p, STOP) for n in (0, 1, 2) for p in product((3, 4, 5), repeat=n)]
        endings += list(product((3, 4, 5), repeat=3))
        rows = torch.tensor([[*e, *[PAD] * (3 - len(e))] for e in endings])
        scores = log_probability(network, source.expand(len(rows), -1), rows)
        best = rows[scores.argmax()]
        found = beam(network, source, width=40)[0]
        assert found.tolist() == best[: len(found)].tolist()
        assert (best[len(found) :] == PAD).all()


@every_model
def test_padding_changes_nothing(name: str) -> None:
    network, source, target = model(name), texts(13, 5, 1, 8), texts(7, 3, 7, 5, symbols=K)
    together, looks = network(source, target), network.decode(network.read(source), target)[1]
    for row, (s, t) in enumerate(((13, 7), (5, 3), (1, 7), (8, 5))):
        one, ask = source[[row], :s], target[[row], :t]
        torch.testing.assert_close(network(one, ask)[0], together[row, :t])
        look = network.decode(network.read(one), target[[row]])[1]
        torch.testing.assert_close(looks[row, :, :s], look[0])
        assert (looks[row, :, s:] == 0).all()
        alone = greedy(network, one)[0]
        batched = greedy(network, source)[row]
        assert batched[: len(alone)].tolist() == alone.tolist()
        assert (batched[len(alone) :] == PAD).all()


@every_model
def test_later_symbols_change_no_earlier_output(name: str) -> None:
    network, source, target = model(name), texts(9, 4), texts(7, 7, symbols=K)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] - 2) % (K - 3) + 3
    first, second = network(source, target), network(source, changed)
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


@every_model
def test_described_and_built_again(name: str) -> None:
    network, source, target = model(name), texts(9, 4), texts(5, 7, symbols=K)
    again = build(describe(network))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(source, target), network(source, target))


@every_model
def test_every_parameter_learns(name: str) -> None:
    network, source, target = model(name).train(), texts(9, 4), texts(5, 7, symbols=K)
    network(source, target).square().sum().backward()
    still = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_seq2seq_is_its_formula() -> None:
    network, source, target = model("additive"), texts(6), texts(5, symbols=K)
    memory = network.encoder(source)
    score = network.attention.attend.score
    s = network.bridge(memory.summary[0]).tanh()
    cell = nn.GRUCell(D, D)
    for own, theirs in zip(cell.parameters(), network.rnn.parameters(), strict=True):
        own.data = theirs.data
    logits, weights = network(source, target)[0], network.weights(source, target)[0]
    for t, before in enumerate([START, *target[0, :-1].tolist()]):
        s = cell(network.embed.weight[before], s)
        energies = []
        for key in memory.tokens[0]:  # v . tanh(W1 k + W2 q)
            hidden = key @ score.key_proj.weight[0] + s @ score.query_proj.weight[0]
            energies.append(hidden.tanh() @ score.energy.weight[0, :, 0])
        a = torch.stack(energies).softmax(0)
        torch.testing.assert_close(weights[t], a)
        c = sum(weight * token for weight, token in zip(a, memory.tokens[0], strict=True))
        seen = network.combine(torch.cat([c, s])).tanh()
        torch.testing.assert_close(logits[t], network.head(seen))


def test_local_monotonic_goes_by_the_step_and_the_true_length() -> None:
    network, source = model("local-m"), texts(12, 5)
    weights = network.weights(source, texts(7, 7, symbols=K))
    for row, length in enumerate((12, 5)):
        for t in range(7):
            near = [j for j in range(length) if abs(j - t * length / 9) <= 2]
            assert weights[row, t].nonzero().flatten().tolist() == near


def test_local_predictive_stays_near_one_place() -> None:
    network, source = model("local-p"), texts(13)
    seen = network.weights(source, texts(7, symbols=K))[0] > 0
    assert (seen.sum(1) <= 7).all()
    assert (seen.sum(1) >= 3).all()


def test_the_last_step_feeds_the_next() -> None:
    network, source, target = model("general lstm fed"), texts(6), texts(4, symbols=K)
    state = network.read(source)
    plain = network.decode(state, target[:, :1])[0]
    fed = network.decode(state | {"fed": torch.ones(1, D)}, target[:, :1])[0]
    assert not torch.allclose(plain, fed)


class Embeddings(Encoder):
    """Each symbol's vector by itself: knows no order."""

    def __init__(self, dim: int):
        super().__init__()
        self.embed = nn.Embedding(S, dim, padding_idx=PAD)

    def forward(self, source: Tensor) -> Memory:
        tokens = self.embed(source)
        return Memory(tokens, tokens, source != PAD, tokens.sum(1))


@pytest.mark.parametrize(
    "make", [Seq2Seq, partial(Seq2Seq, score=att.General), partial(Transformer, heads=2)]
)
def test_a_reversed_source_is_looked_at_in_reverse(make: Any) -> None:
    network = make(K, Embeddings, D).eval()
    source, target = texts(7, 7), texts(5, 5, symbols=K)
    torch.testing.assert_close(network(source, target), network(source.flip(1), target))
    forth, back = network.weights(source, target), network.weights(source.flip(1), target)
    torch.testing.assert_close(forth, back.flip(2))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_two_directions_trade_places_where_the_source_is_reversed(cell: Any) -> None:
    encoder = RecurrentEncoder(D, S, cell=cell).eval()
    mirrored = RecurrentEncoder(D, S, cell=cell).eval()
    swapped = {
        name.removesuffix("_reverse") if name.endswith("_reverse") else f"{name}_reverse": value
        for name, value in encoder.rnn.state_dict().items()
    }
    mirrored.embed.load_state_dict(encoder.embed.state_dict())
    mirrored.rnn.load_state_dict(swapped)
    source = texts(7, 4)
    turned = torch.stack([source[0].flip(0), torch.cat([source[1, :4].flip(0), source[1, 4:]])])
    tokens, _, _, summary = encoder(source)
    other, _, _, other_summary = mirrored(turned)
    halves = lambda x: torch.cat(x.chunk(2, -1)[::-1], -1)  # noqa: E731
    torch.testing.assert_close(halves(other_summary), summary)
    for row, length in enumerate((7, 4)):
        torch.testing.assert_close(halves(other[row, :length]).flip(0), tokens[row, :length])


def copy_attention(own: att.MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    own.qkv.weight.data, own.qkv.bias.data = theirs.in_proj_weight.data, theirs.in_proj_bias.data
    own.proj.load_state_dict(theirs.out_proj.state_dict())


def test_transformer_is_torch_s_with_its_weights() -> None:
    network = model("transformer")
    options: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(D, 3, 2 * D, **options)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
    peer = nn.Transformer(D, 3, 2, 2, 2 * D, custom_encoder=encoder, **options).eval()
    for p in peer.parameters():
        nn.init.normal_(p, std=0.4)
    for own, theirs in zip(network.encoder.blocks, peer.encoder.layers, strict=True):
        copy_attention(own.attn, theirs.self_attn)
        pairs = [(own.norm1, theirs.norm1), (own.norm2, theirs.norm2)]
        pairs += [(own.mlp.fc1, theirs.linear1), (own.mlp.fc2, theirs.linear2)]
        for mine, other in pairs:
            mine.load_state_dict(other.state_dict())
    for own, theirs in zip(network.blocks, peer.decoder.layers, strict=True):
        copy_attention(own.self_attn, theirs.self_attn)
        copy_attention(own.cross_attn, theirs.multihead_attn)
        pairs = [(getattr(own, n), getattr(theirs, n)) for n in ("norm1", "norm2", "norm3")]
        pairs += [(own.mlp.fc1, theirs.linear1), (own.mlp.fc2, theirs.linear2)]
        for mine, other in pairs:
            mine.load_state_dict(other.state_dict())
    network.encoder.norm.load_state_dict(peer.encoder.norm.state_dict())
    network.norm.load_state_dict(peer.decoder.norm.state_dict())

    source, target = texts(11, 4), texts(7, 5, symbols=K)
    hidden = peer(
        network.encoder.embed(source),
        network.embed(network.shifted(target)),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.bool),
        src_key_padding_mask=source == PAD,
        memory_key_padding_mask=source == PAD,
    )
    torch.testing.assert_close(network(source, target), network.head(hidden))


IMAGES = {
    "conv": partial(ConvEncoder, widths=(4, 6)),
    "conv in spans": partial(ConvEncoder, widths=(4, 6), span=3),
    "conv without context": partial(ConvEncoder, widths=(4, 6, 8), sizes=(4, 3, 2), context=False),
    "vit": partial(ViTEncoder, image_size=(16, 40), patch_size=4, depth=1, heads=2),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("make", [Seq2Seq, partial(Transformer, heads=3)])
def test_images_are_read_column_by_column(make: Any, name: str) -> None:
    network = make(K, IMAGES[name], D).eval()
    images = torch.randn(2, 3, 16, 40)
    assert network.encoder.grid((16, 40)) == (4, 10)
    assert network(images, texts(5, 3, symbols=K)).shape == (2, 5, K)
    weights = network.weights(images, texts(5, 3, symbols=K))
    maps = network.encoder.maps(weights, (16, 40))
    assert maps.shape == (2, 5, 4, 10)
    assert torch.equal(maps[1, 2, 3, 7], weights[1, 2, 7 * 4 + 3])
    assert greedy(network, images).size(1) <= network.longest
    assert describe(build(describe(network))) == describe(network)


def test_a_token_s_map_is_its_own_patch() -> None:
    encoder = ViTEncoder(D, image_size=(16, 40), patch_size=4, depth=0, heads=2).eval()
    images = torch.zeros(1, 3, 16, 40)
    changed = images.clone()
    changed[0, :, 9, 22] = 1  # row 2, column 5 of the grid
    differ = (encoder(images).tokens != encoder(changed).tokens).any(-1)
    there = encoder.maps(differ.float()[:, None], (16, 40))[0, 0]
    assert there.nonzero().tolist() == [[2, 5]]


@pytest.mark.parametrize("context", [True, False])
def test_what_is_read_knows_what_is_near_and_a_key_knows_more_with_context(context: bool) -> None:
    encoder = ConvEncoder(D, widths=(4, 6, 8), context=context).eval()
    images = torch.zeros(1, 3, 40, 72)
    tokens, keys = encoder(images)[:2]
    if not context:
        assert len(keys[0].unique(dim=0)) == keys.size(1)  # of a blank image
    changed = images.clone()
    changed[0, :, 17, 33] = 1  # row 2, column 4 of the grid
    for before, after, apart in zip(
        (tokens, keys), encoder(changed)[:2], (1, 4 if context else 1), strict=True
    ):
        differ = (before != after).any(-1).float()
        there = encoder.maps(differ[:, None], (40, 72))[0, 0].nonzero()
        assert (there - torch.tensor([2, 4])).abs().max() == apart


@pytest.mark.parametrize("name", ["additive", "transformer"])
def test_sources_that_are_wrong(name: str) -> None:
    network, target = model(name), texts(5, symbols=K)
    with pytest.raises(ValueError, match="at least one symbol in each source, got an empty one"):
        network(torch.zeros(1, 3, dtype=torch.long), target)
    with pytest.raises(ValueError, match="at least one symbol in each source"):
        network(torch.zeros(1, 0, dtype=torch.long), target)
    with pytest.raises(ValueError, match="sources of at most 13 symbols, got 14"):
        greedy(network, texts(14))
    with pytest.raises(ValueError, match="expected numbers from 0 to 16, got 17"):
        beam(network, torch.tensor([[17, 3]]))


def test_targets_and_options_that_are_wrong() -> None:
    with pytest.raises(ValueError, match="targets of at most 9 symbols, got 10"):
        model("additive")(texts(5), texts(10, symbols=K))
    with pytest.raises(ValueError, match="built without attention"):
        model("none").weights(texts(5), texts(5, symbols=K))
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        beam(model("none"), texts(5), width=0)
    with pytest.raises(ValueError, match="dim must be even"):
        RecurrentEncoder(7)
    with pytest.raises(ValueError, match="dim must be even"):
        ConvEncoder(7)
    with pytest.raises(ValueError, match="span must be at least 1 column, got 0"):
        ConvEncoder(8, span=0)
    with pytest.raises(ValueError, match="expected 2 sizes of at least 1, one for each width"):
        ConvEncoder(8, widths=(4, 6), sizes=(4, 4, 2))
    with pytest.raises(
        ValueError, match="dim must be a multiple of 4, two sinusoids an axis, got 6"
    ):
        ConvEncoder(6, context=False)
