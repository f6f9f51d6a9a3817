"""A compiled network trains as it would without."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD

from vision_attn.compat import torch_private
from vision_attn.compat.torch_private import is_compiled
from vision_attn.training import Compile, ImageClassifier


class Seen(Callback):
    """Whether the network runs compiled: in training, and while it validates."""

    def __init__(self) -> None:
        self.compiled: dict[str, set[bool]] = {"train": set(), "validate": set()}

    def _note(self, stage: str, module: Any) -> None:
        assert torch._dynamo.eval_frame._stance.stance == "default", "others stay compiled"
        self.compiled[stage].add(is_compiled(module.network))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: Any
    ) -> None:
        self._note("train", pl_module)

    def on_validation_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: Any,
        dataloader_idx: int = 0,
    ) -> None:
        self._note("validate", pl_module)


@pytest.mark.compiled
def test_a_compiled_network_ends_with_the_same_weights(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    tmp_path: Path,
) -> None:
    def fit(name: str, *callbacks: Any) -> ImageClassifier:
        torch.manual_seed(0)
        model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
        trainer(name, max_epochs=2, callbacks=list(callbacks)).fit(model, datamodule=stripes())
        return model

    plain, seen = fit("plain"), Seen()
    compiled = fit("compiled", Compile(backend="aot_eager"), seen)
    assert seen.compiled == {"train": {True}, "validate": {False}}
    assert not is_compiled(compiled.network)
    torch.testing.assert_close(compiled.state_dict(), plain.state_dict())
    saved = torch.load(tmp_path / "compiled/last.ckpt", weights_only=True)["state_dict"]
    assert saved.keys() == plain.state_dict().keys()


@pytest.mark.compiled
def test_without_the_reach_into_modules_it_ends_with_the_same_weights(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fit(name: str) -> ImageClassifier:
        torch.manual_seed(0)
        model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
        trainer(name, callbacks=[Compile(backend="aot_eager")]).fit(model, datamodule=stripes())
        return model

    expected = fit("with").state_dict()
    monkeypatch.setattr(torch_private, "COMPILED_CALL", "_taken_away")
    torch.testing.assert_close(fit("without").state_dict(), expected)
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.compiled
def test_a_validation_that_fails_leaves_the_network_as_it_was(
    trainer: Callable[..., Any], small_vit: Callable[..., Any], stripes: Callable[..., Any]
) -> None:
    class Fails(Callback):
        def on_validation_batch_end(self, trainer: Any, *rest: Any) -> None:
            if not trainer.sanity_checking:
                raise RuntimeError("in validation")

    model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
    with pytest.raises(RuntimeError, match="in validation"):
        trainer(callbacks=[Compile(backend="aot_eager"), Fails()]).fit(model, datamodule=stripes())
    assert not is_compiled(model.network)
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.compiled
def test_a_training_that_fails_leaves_the_network_as_it_was(
    trainer: Callable[..., Any], small_vit: Callable[..., Any], stripes: Callable[..., Any]
) -> None:
    class Fails(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            assert is_compiled(pl_module.network)
            raise RuntimeError("in training")

    model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
    with pytest.raises(RuntimeError, match="in training"):
        trainer(callbacks=[Compile(backend="aot_eager"), Fails()]).fit(model, datamodule=stripes())
    assert not is_compiled(model.network)


@pytest.mark.compiled
def test_what_compiles_is_one_graph(small_vit: Callable[..., Any]) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    network = small_vit().train()
    network.compile(backend=counter, fullgraph=True)
    network(torch.randn(2, 3, 8, 8)).sum().backward()
    assert counter.frame_count == 1


def test_without_a_compiler_it_says_so(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import cpp_builder

    def nothing() -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", nothing)
    with pytest.raises(OSError, match=r"needs a C[+][+] compiler, and none was found: install"):
        trainer(callbacks=[Compile()]).fit(ImageClassifier(small_vit()), datamodule=stripes())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "tvn"}, "backend must be one of .*inductor.*, got 'tvn'"),
        ({"mode": "fast"}, "mode must be one of default, .*, got 'fast'"),
    ],
)
def test_options_that_torch_does_not_know(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Compile(**options)
