"""Run the Keras snippets of Learn, and print how far each is from what keras_cases.py has written.

    KERAS_BACKEND=tensorflow python tests/in_keras/compare.py cases.npz

Prints a JSON object: for each case the largest difference of a call, of a compiled model, and on
torch of the gradients, beside the largest that is allowed. Needs keras, its backend and numpy alone.
"""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common import dtypes

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from keras_tabs import snippets

BACKEND = keras.config.backend()
EXACT, SINGLE = 1e-12, 1e-6  # rounding of float64, and of a float32 on the way
# Rollout's maps are float32. So are a factor of Keras's own attention, and one of TensorFlow's GELU.
ROUNDED = {"rollout"} | (set() if BACKEND == "torch" else {"Block"})


def differences(path: str) -> dict[str, dict[str, float]]:
    """Compare each case of the file."""
    compute_in_float64()
    code = snippets()
    found: dict[str, dict[str, float]] = {}
    for key, case in read(path).items():
        name, *_ = key.split()
        names: dict[str, Any] = {}
        exec(compile(code[name], name, "exec"), names)  # alone, as the page shows it
        run = callable_of(names[name], case)
        wanted = list(case["outputs"].values())
        found[key] = {"call": apart(tuple_of(run(**tensors(case["inputs"]))), wanted)}
        found[key]["model"] = apart(in_a_model(run, case["inputs"]), wanted)
        if BACKEND == "torch" and "gradients" in case:
            found[key]["gradient"] = apart(gradients(run, case), list(case["gradients"].values()))
        found[key]["allowed"] = SINGLE if name in ROUNDED else EXACT
    found["hard drawn"] = {"frequency": drawn(code["hard"]), "allowed": 0.015}
    return found


def compute_in_float64() -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    # Keras has no public way to keep float64 on torch and JAX: it makes float32 of it.
    dtypes.BIT64_TO_BIT32_DTYPE.clear()
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)


def read(path: str) -> dict[str, dict[str, Any]]:
    """Return the cases of a file by their names; an input NAME.0, NAME.1 ... is a list."""
    cases: dict[str, dict[str, Any]] = {}
    with np.load(path) as arrays:
        for name, array in arrays.items():
            key, part, *rest = name.split("|")
            case = cases.setdefault(key, {})
            if part == "options":
                case[part] = json.loads(str(array))
            elif part == "inputs" and "." in rest[0]:
                case.setdefault(part, {}).setdefault(rest[0].split(".")[0], []).append(array)
            else:
                case.setdefault(part, {})[rest[0]] = array
    return cases


def callable_of(made: Any, case: dict[str, Any]) -> Callable[..., Any]:
    """Return a snippet that takes the inputs: a layer with the case's weights, or a function."""
    options = case["options"]
    if not inspect.isclass(made):
        return lambda **inputs: made(**inputs, **options)
    layer: Any = made(**options)
    layer(**tensors(case["inputs"]))
    weights = case.get("weights", {})
    for path, value in weights.items():
        target: Any = layer
        for part in path.split("."):
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        target.assign(value)
        target.trainable = False  # only the inputs have gradients
    assert len(layer.weights) == len(weights), [weight.path for weight in layer.weights]
    return layer


def tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: each(ops.convert_to_tensor, x) for name, x in inputs.items()}


def each(function: Callable[[Any], Any], x: Any) -> Any:
    return [function(one) for one in x] if isinstance(x, list) else function(x)


def tuple_of(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def apart(results: Any, wanted: list[np.ndarray]) -> float:
    """Return the largest difference; raise where shape or type differ."""
    assert len(results) == len(wanted)
    largest = 0.0
    for result, expected in zip(results, wanted, strict=True):
        array = ops.convert_to_numpy(result)
        assert array.shape == expected.shape, (array.shape, expected.shape)
        assert array.dtype == expected.dtype, array.dtype
        largest = max(largest, float(np.abs(array - expected).max()))
    return largest


def in_a_model(run: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """Return what a model of the snippet predicts: for any batch, and compiled by its backend."""
    symbol = lambda x: keras.Input(x.shape[1:], dtype=str(x.dtype))  # noqa: E731
    symbols = {name: each(symbol, x) for name, x in inputs.items()}
    model = keras.Model(list(symbols.values()), run(**symbols))
    return tuple_of(model.predict_on_batch(list(inputs.values())))


def gradients(run: Callable[..., Any], case: dict[str, Any]) -> list[Any]:
    """Return the gradients of the inputs along the direction of keras_cases.py."""
    inputs = tensors(case["inputs"])
    followed = [inputs[name].detach().requires_grad_() for name in case["gradients"]]
    inputs |= dict(zip(case["gradients"], followed, strict=True))
    loss: Any = 0.0
    for result in tuple_of(run(**inputs)):
        numbers = ops.cos(ops.arange(1, result.numel() + 1, dtype="float64"))
        loss = loss + ops.sum(result * ops.reshape(numbers, result.shape))
    loss.backward()
    return [x.grad for x in followed]


def drawn(code: str) -> float:
    """Return how far the frequencies of many draws are from the softmax."""
    names: dict[str, Any] = {}
    exec(compile(code, "hard", "exec"), names)
    keras.utils.set_random_seed(0)
    scores = np.array([1.0, 0.0, 2.0, -1.0, 0.5])
    draws = names["hard"](ops.convert_to_tensor(np.tile(scores, (20_011, 1))), draw=True)
    draws = ops.convert_to_numpy(draws)
    assert np.allclose(np.sort(draws, axis=1), [0, 0, 0, 0, 1])
    return float(np.abs(draws.mean(0) - np.exp(scores) / np.exp(scores).sum()).max())


if __name__ == "__main__":
    print(json.dumps(differences(sys.argv[1])))
