"""The house keeps its shape: imports go one way, and the command line's module stays light."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp
import pytest
import torch

PACKAGE = Path(__file__).parent.parent / "vision_attn"


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a file, which several tests walk."""
    return list(ast.walk(ast.parse(source)))


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of files that import each other, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_keep_their_contracts() -> None:
    """They are in pyproject.toml, under tool.importlinter.

    In a process of its own: import-linter turns off every logger that it did not make.
    """
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_circle_of_files() -> None:
    """A file and its own package too, of which import-linter has no contract.

    The package's own `__init__.py` is left out: it shows all parts and loads each on first use.
    """
    graph = grimp.build_graph("vision_attn", cache_dir=None)
    files = graph.modules - {"vision_attn"}
    assert not circle({file: graph.find_modules_directly_imported_by(file) for file in files})


def test_a_circle_is_seen() -> None:
    assert circle({"methods": {"rollout"}, "rollout": {"tiles"}, "tiles": set()}) == []
    assert {"methods", "rollout", "tiles"} == set(
        circle({"methods": {"rollout"}, "rollout": {"tiles"}, "tiles": {"methods"}})
    )


def test_a_class_name_stands_once() -> None:
    """So that a name in an error, a search or a talk means one thing."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in nodes_of(path.read_text()):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not twice


# Local names that say nothing of what they hold, by room: no more than here, and fewer with time.
VAGUE = {"one", "found", "made", "at", "given", "told", "asked", "place", "places", "known", "kept"}
VAGUE |= {"came", "was"}
PLAIN_ROOMS = {
    "attention": 0,
    "methods": 0,
    "evaluate": 0,
    "models": 0,
    "training": 0,
    "hub": 0,
    "data": 7,
    "tokens": 0,
}


def vague_names(source: str) -> list[str]:
    """The local names and parameters of a file's functions that are vague, with their lines."""
    functions = [n for n in nodes_of(source) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    inside = {node for function in functions for node in ast.walk(function)}
    names = {(n.lineno, n.arg) for n in inside if isinstance(n, ast.arg)}
    stored = (n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    names |= {(n.lineno, n.id) for n in stored}
    return [f"line {line}: {name}" for line, name in sorted(names) if name in VAGUE]


@pytest.mark.parametrize(("room", "most"), PLAIN_ROOMS.items())
def test_local_names_say_what_they_hold(room: str, most: int) -> None:
    names = {
        str(path.relative_to(PACKAGE)): vague_names(path.read_text())
        for path in sorted((PACKAGE / room).rglob("*.py"))
    }
    names = {path: lines for path, lines in names.items() if lines}
    assert sum(map(len, names.values())) <= most, f"say the noun: {names}"


def test_vague_names_are_seen() -> None:
    source = "place = 3\ndef f(given, x):\n    for at, y in x:\n        found = y\n    return given, place"
    assert vague_names(source) == ["line 2: given", "line 3: at", "line 4: found"]


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys, vision_attn, vision_attn.cli; "
        "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "vision_attn", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"vision-attn \d+\.\d+\.\d+", done.stdout.splitlines()[0])


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_make_says_what_it_installs_and_for_how_long(goal: str, tmp_path: Path) -> None:
    words = ["make", "-n", goal, f"VENV={tmp_path / 'new'}"]
    done = subprocess.run(words, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    (notice,) = (at for at, line in enumerate(lines) if re.search(r"echo .*minutes.* GB", line))
    installs, *_ = (at for at, line in enumerate(lines) if "pip install" in line)
    assert notice < installs


# how networks are run

# What trains networks, what they are made of, and what makes or runs them for all others.
RUN_BY_THEMSELVES = (
    *("training/", "sequences/models/", "sequences/learners.py", "distillation.py", "models/"),
    *("attention/", "inference.py", "hooks.py"),
)
NETWORKS = re.compile(r"(.*_)?(network|net|backbone|teacher|student|randomised)")
MODULES = {"nn.Module", "SequenceModel", "QuestionAnswerer"}
SWITCHES = re.compile(r"register_.*hook|eval|train|requires_grad_")
# Networks that were just made; a look at the hooks that others have set; tensors.
SWITCHED_ELSEWHERE = {("levels.py", "requires_grad_"), ("rules.py", "register_hook"),
    ("loading.py", "eval"), ("checkpoints.py", "eval"), ("translation.py", "register_forward_hook"),
    ("translation.py", "register_forward_pre_hook")}  # fmt: skip


def runs_of_networks(source: str, file: str = "") -> list[str]:
    """The lines that call a network, but in a module's own `forward`, or change how one runs.

    A network is what is annotated as a module, what is named as one, and any `.network`.
    """
    found = []
    nodes = nodes_of(source)
    functions = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    functions |= {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}

    def is_network(called: ast.expr, modules: set[str]) -> bool:
        if isinstance(called, ast.Attribute):
            forward = called.attr.startswith("forward_") or called.attr == "forward"
            return NETWORKS.fullmatch(called.attr) is not None or (
                forward and is_network(called.value, modules)
            )
        return isinstance(called, ast.Name) and (
            called.id in modules
            or (NETWORKS.fullmatch(called.id) is not None and called.id not in functions)
        )

    def visit(node: ast.AST, modules: set[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "forward":
                return
            given = [*node.args.args, *node.args.kwonlyargs]
            kinds = {
                each.arg: ast.unparse(each.annotation)
                for each in given
                if each.annotation is not None
            }
            modules = (modules - {each.arg for each in given}) | {
                name for name, kind in kinds.items() if MODULES & set(kind.split(" | "))
            }
        if isinstance(node, ast.Call):
            if is_network(node.func, modules):
                found.append(f"line {node.lineno}: {ast.unparse(node.func)}(...)")
            elif isinstance(node.func, ast.Attribute) and SWITCHES.fullmatch(node.func.attr):
                of_inputs = node.func.attr == "requires_grad_" and not node.args
                if not of_inputs and (file, node.func.attr) not in SWITCHED_ELSEWHERE:
                    found.append(f"line {node.lineno}: .{node.func.attr}(...)")
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            switched = [t for t in targets if isinstance(t, ast.Attribute) and t.attr == "training"]
            found.extend(f"line {node.lineno}: {ast.unparse(each)} = ..." for each in switched)
        for child in ast.iter_child_nodes(node):
            visit(child, modules)

    visit(ast.parse(source), set())
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_networks_are_run_by_inference_alone(path: Path) -> None:
    found = runs_of_networks(path.read_text(), path.name)
    itself = str(path.relative_to(PACKAGE)).startswith(RUN_BY_THEMSELVES)
    assert itself or not found, (
        f"{path.name} runs a network by itself: {found}. Call vision_attn.inference.infer, and set "
        "hooks by vision_attn.hooks.Hooks, so that it predicts and is left as it was"
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(network, x): return network(x)", "network(...)"),
        ("def f(model, x): return model.network(x).logits", "model.network(...)"),
        ("class A:\n  def f(self, x): return self.network.forward_features(x)", "self.network.f"),
        ("def f(one: nn.Module, x):\n  def g():\n    return one(x)\n  return g", "one(...)"),
        ("def f(one: nn.Module | None, x): return one.forward(x)", "one.forward(...)"),
        ("def f(a, *, decoder: SequenceModel): return decoder(a)", "decoder(...)"),
        ("def f(network): network.eval()", ".eval(...)"),
        ("def f(a): a.requires_grad_(False)", ".requires_grad_(...)"),
        ("def f(block, hook): block.register_full_backward_hook(hook)", ".register_full_"),
        ("def f(a):\n  for m in a.modules(): m.training = True", "m.training = ..."),
    ],
)
def test_the_walk_sees_a_network_run(source: str, found: str) -> None:
    (seen,) = runs_of_networks(source)
    assert found in seen


def test_the_walk_passes_what_runs_no_network() -> None:
    assert not runs_of_networks("""
class Wrapper(nn.Module):
    def forward(self, x): return self.network(x)
def f(network: nn.Module, images, module):
    images.requires_grad_()
    return infer(network, images), network.modules(), module
""")


# what errors quote


def unshortened(source: str) -> list[str]:
    """The lines of errors that quote a value whole: it may have thousands of characters."""
    raised = (node.exc for node in nodes_of(source) if isinstance(node, ast.Raise) and node.exc)
    return [
        f"line {inner.lineno}: {ast.unparse(inner.value)}"
        for error in raised
        for inner in ast.walk(error)
        if isinstance(inner, ast.FormattedValue) and inner.conversion == ord("r")
    ]


def test_errors_quote_values_in_short() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py" and (lines := unshortened(path.read_text()))
    }
    assert not found, f"say {{quoted(value)}}, of vision_attn.errors: {found}"
    assert unshortened("raise ValueError(f'got {value!r}')") == ["line 1: value"]


# torch's defaults, which belong to the user

# Parts whose tensors are those of a network that is built or trained, as torch's defaults say.
BY_DEFAULT = (
    *("attention/", "models/", "training/", "sequences/models/", "sequences/learners.py"),
    "distillation.py",
)
OF_FLOATS = {
    *("zeros", "ones", "full", "empty", "eye", "linspace", "logspace", "rand", "randn", "tensor"),
}
OF_INDICES = {"arange", "randperm", "randint", "as_tensor", "tril_indices", "triu_indices"}


def without_saying(source: str) -> list[str]:
    """The lines that make a tensor or a generator by torch's default dtype or device."""
    found = []
    for node in nodes_of(source):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, of = node.func.attr, node.func.value
        if not isinstance(of, ast.Name) or of.id != "torch":
            continue
        said = {keyword.arg for keyword in node.keywords}
        if name == "Generator" and not node.args:
            found.append(f"line {node.lineno}: torch.Generator()")
        wanted = {"dtype", "device"} if name in OF_FLOATS else {"device"}
        if name in OF_FLOATS | OF_INDICES and None not in said and wanted - said:
            found.append(f"line {node.lineno}: torch.{name}(...) says no {sorted(wanted - said)}")
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_every_tensor_and_generator_says_its_dtype_and_device(path: Path) -> None:
    found = without_saying(path.read_text())
    by_default = str(path.relative_to(PACKAGE)).startswith(BY_DEFAULT)
    assert by_default or not found, (
        f"{path.name} makes tensors as torch.set_default_dtype and set_default_device say: {found}"
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch.Generator().manual_seed(3)", "torch.Generator()"),
        ("torch.zeros(3, device=x.device)", "torch.zeros(...) says no ['dtype']"),
        ("torch.arange(5)", "torch.arange(...) says no ['device']"),
        ("torch.tensor([1.0])", "torch.tensor(...) says no ['device', 'dtype']"),
    ],
)
def test_the_walk_sees_what_torch_decides_by_default(source: str, found: str) -> None:
    (seen,) = without_saying(source)
    assert found in seen


def test_the_walk_passes_what_says_its_dtype_and_device() -> None:
    assert not without_saying(
        "torch.rand(3, generator=g, **how), torch.zeros_like(x), x.new_zeros(3), "
        "torch.Generator('cpu'), torch.eye(3, dtype=x.dtype, device='cpu'), numpy.zeros(3)"
    )


# what libraries keep to themselves

PUBLIC = {"_asdict", "_fields", "_make", "_replace"}  # of a named tuple, which has no other names
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def own_object(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined_in(source: str) -> set[str]:
    """What a file defines, as functions, classes or attributes of self."""
    nodes = nodes_of(source)
    named = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    kept = [n for n in nodes if isinstance(n, ast.Attribute) and own_object(n.value)]
    return named | {n.attr for n in kept if isinstance(n.ctx, ast.Store)}


@cache
def defined_in_package() -> set[str]:
    return set().union(*(defined_in(path.read_text()) for path in PACKAGE.rglob("*.py")))


def reaches(source: str) -> list[str]:
    """The private names of others that a file imports or uses, with their lines.

    Own names are those that the file defines and, for self, that any file of the package does.
    """
    defined, found = defined_in(source) | PUBLIC, []
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not f"{node.module}".startswith("vision_attn"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            own = node.attr in (
                defined | defined_in_package() if own_object(node.value) else defined
            )
            names = [] if own else [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_NAME:
            name = getattr(node.args[1], "value", "")
            names = [name] if name not in defined else []
        else:
            continue
        private = [name for name in names if any(map(is_private, f"{name}".split(".")))]
        found += [f"line {node.lineno}: {name}" for name in private]
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_private_state_of_libraries_is_reached_for_in_compat_alone(path: Path) -> None:
    found = reaches(path.read_text())
    assert part_of(path) == "compat" or not found, (
        f"{path.name} reaches for what a library keeps to itself: {found}. Use its public names, "
        "or put the reach into vision_attn/compat, with a way that works without it"
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from torch.nn.modules.batchnorm import _BatchNorm", "torch.nn.modules.batchnorm._Batch"),
        ("import torch._inductor.config", "torch._inductor.config"),
        ("from torch._inductor import config", "torch._inductor.config"),
        ("import torch\ntorch._fused_sdp_choice()", "_fused_sdp_choice"),
        ("def names(module): return module._modules", "_modules"),
        ("def undo(network): network._compiled_call_impl = None", "_compiled_call_impl"),
        ("class A:\n  def f(self): return self._unheard_of", "_unheard_of"),
        ("hasattr(network, '_orig_mod')", "_orig_mod"),
        ("class A:\n  def __setattr__(s, name, value): setattr(s, '_current', value)", "_current"),
    ],
)
def test_the_walk_sees_a_reach(source: str, found: str) -> None:
    (seen,) = reaches(source)
    assert found in seen


def test_the_walk_passes_what_is_a_files_own() -> None:
    own = """
from vision_attn.render.figures import _look
class A:
    def __init__(self): self._kept = 3
    def _count(self, other): return self._kept + other._kept + other._count(self)
    def fields(self, one): return one._asdict(), one.__dict__, _look
"""
    assert reaches(own) == []


def test_no_class_keeps_its_own_under_a_private_name_of_its_base() -> None:
    """Nothing is set in a base class of a library, by design or by accident."""
    import vision_attn

    found = []
    for module in pkgutil.walk_packages(vision_attn.__path__, "vision_attn."):
        for one in vars(import_module(module.name)).values():
            if not inspect.isclass(one) or one.__module__ != module.name:
                continue
            kept = _kept_by(one)
            for base in one.__mro__[1:] if kept else ():
                if base.__module__.split(".")[0] not in ("vision_attn", "builtins", "typing"):
                    shared = kept & _kept_by(base)
                    found += [f"{one.__name__}: {base.__name__}.{name}" for name in shared]
    assert not found


def test_private_names_of_a_class_are_seen() -> None:
    assert {"_modules", "_parameters"} <= _kept_by(torch.nn.Module)
    assert _kept_by(torch.Size) == set()  # written in C


@pytest.mark.xdist_group("house")
def test_a_group_of_tests_runs_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows a group by the test's name; without it, each process prepares anew."""
    by_group = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@house") == by_group


def _kept_by(kind: type) -> set[str]:
    """The private names that the source of a class uses of self; none if it is written in C."""
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return set()
    return _kept_in(file).get(kind.__qualname__, set()) if file else set()


@cache
def _kept_in(file: str) -> dict[str, set[str]]:
    """The same of each class of a file, by its qualified name: one look for all of them."""
    text = Path(file).read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}

    def visit(nodes: list[ast.stmt], inside: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found[inside + node.name] = set(re.findall(r"self\.(_[a-z]\w*)", source))
            name = getattr(node, "name", "")
            local = "" if isinstance(node, ast.ClassDef) else "<locals>."
            visit(
                [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)],
                f"{inside}{name}.{local}" if name else inside,
            )

    visit(ast.parse(text).body, "")
    return found
