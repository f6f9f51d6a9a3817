"""Fine-tuning: weights to start from, and training of the classifier alone."""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from vision_attn.models.checkpoint import load_weights, read_weights, without_prefix

__all__ = ["LinearProbe", "last_layer", "start_from"]


class LinearProbe(Callback):
    """Training of the last layer alone; all before it keeps its weights and running statistics.

    (`layer_decay` of ImageClassifier is the softer way: everything learns, the deeper the slower.)
    Alain & Bengio 2016 (arXiv:1610.01644).

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.models import seresnet18
        >>> from vision_attn.training import ImageClassifier, LinearProbe
        >>> module = ImageClassifier(seresnet18(10))
        >>> LinearProbe().setup(Trainer(logger=False), module, "fit")
        >>> [name for name, p in module.network.named_parameters() if p.requires_grad]
        ['fc.weight', 'fc.bias']
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        pl_module.requires_grad_(False)
        last_layer(pl_module).requires_grad_(True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.eval()  # no moving statistics, no dropped branches
        last_layer(pl_module).train()


def last_layer(network: nn.Module) -> nn.Module:
    """Find the module with the last weight matrix: the classifier, in every network known here.

    Raises ValueError where there is none.
    """
    layers = [m for m in network.modules() if getattr(m, "weight", None) is not None]
    matrices = [m for m in layers if isinstance(m.weight, nn.Parameter) and m.weight.ndim >= 2]
    if not matrices:
        raise ValueError("the network has no weight matrix: there is no classifier to train")
    return matrices[-1]


def start_from(network: nn.Module, weights: str) -> str:
    """Load the weights that a network starts from; return a line that says what is loaded.

    weights: a file, or vision_attn:NAME. The last layer keeps its own where it has another number
    of outputs. Raises ModelError, one line, for weights of another network.

    Examples:
        >>> import tempfile, torch
        >>> from vision_attn.models import FastCNN
        >>> from vision_attn.training.finetuning import start_from
        >>> old, new = FastCNN(10, widths=(8, 8, 8)), FastCNN(3, widths=(8, 8, 8))
        >>> with tempfile.NamedTemporaryFile(suffix=".pth") as file:
        ...     torch.save(old.state_dict(), file.name)
        ...     start_from(new, file.name).replace(file.name, "FILE")
        'start: 50 of 51 tensors from FILE; new: fc.weight, for 3 classes instead of 10'
    """
    expected = network.state_dict()
    state = without_prefix(read_weights(weights), expected)
    last = last_layer(network)
    prefix = next(f"{name}." for name, module in network.named_modules() if module is last)
    new = [
        name
        for name, tensor in expected.items()
        if name.startswith(prefix) and name in state and state[name].shape != tensor.shape
    ]
    line = f"start: {len(expected) - len(new)} of {len(expected)} tensors from {weights}"
    if new:
        classes = f"{len(expected[new[0]])} classes instead of {len(state[new[0]])}"
        line += f"; new: {', '.join(new)}, for {classes}"
    load_weights(network, state | {name: expected[name] for name in new}, weights)
    return line
