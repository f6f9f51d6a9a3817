"""The Keras 3 code of docs/in_keras, for the tabs beside the code of this package.

Needs the standard library alone: the tests run this where neither mkdocs nor torch is installed.
"""

import ast
from pathlib import Path
from textwrap import indent

SOURCES = Path(__file__).parent / "in_keras"
# What stands beside <!-- code: NAME -->: first the same mechanism, then others of that page.
COUNTERPARTS: dict[str, list[str]] = {
    "attention.Additive.forward": ["Additive", "attend"],
    "attention.DotProduct.forward": ["dot_product", "CosineSimilarity"],
    "attention.General.transform": ["General", "Concat", "Location", "Deep"],
    "attention.LocalPredictive._around": ["LocalPredictive", "local_monotonic"],
    "attention.Softmax.normalize": ["softmax", "sparsemax", "hard", "PhotoAttention"],
    "attention.SumUpdate.forward": ["MemoryHops"],
    "attention.KeyOnly.forward": [
        "KeyOnly",
        "Hierarchical",
        "AttentionViaAttention",
        "TargetGuided",
    ],
    "attention.MaxPoolCoAttention.weigh": [
        "MaxPoolCoAttention",
        "ParallelCoAttention",
        "AlternatingCoAttention",
        "InteractiveAttention",
        "attention_over_attention",
    ],
    "attention.MultiHeadAttention.project": ["SelfAttention"],
    "attention.MultiHeadAttention.forward": [
        "MultiHeadAttention",
        "MultiDimAttention",
        "MultiDimPool",
    ],
    "attention.SqueezeExcite.gate": ["SqueezeExcite"],
    "attention.ChannelGate.gate": ["ChannelGate"],
    "attention.SpatialGate.gate": ["SpatialGate", "SpatialMask"],
    "models.vit.Block.forward": ["Block", "PatchEmbed"],
    "tokens.path.chain.PropagationRule.mix": ["rollout"],
}


def snippets() -> dict[str, str]:
    """Return the code of each mechanism by its name, with the imports that it needs."""
    return {
        node.name: shown(source, node)
        for source in (path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.py")))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


def shown(source: str, node: ast.AST) -> str:
    """Return the code of a class or function, so that it runs alone."""
    used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    imports = ["import keras"] if "keras" in used else []
    imports += [f"from keras import {', '.join(sorted(used & {'layers', 'ops'}))}"]
    return "\n".join([*imports, "", "", ast.get_source_segment(source, node) or ""])


def with_keras(name: str, ours: str) -> str:
    """Return our block of code, in tabs with its counterparts in Keras if there are any."""
    if name not in COUNTERPARTS:
        return ours
    code = snippets()
    first, *others = COUNTERPARTS[name]
    keras = [f'```py title="{first}"\n{code[first]}\n```']
    keras += [f'??? example "{other}"\n\n{block(code[other])}' for other in others]
    return "\n\n".join([tab("PyTorch", ours), tab("Keras 3", "\n\n".join(keras))])


def block(code: str) -> str:
    """Return code as it stands inside a note that opens."""
    return indent(f"```py\n{code}\n```", "    ")


def tab(label: str, content: str) -> str:
    return f'=== "{label}"\n\n{indent(content, "    ")}'
