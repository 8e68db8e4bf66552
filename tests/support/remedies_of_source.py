"""The remedies that the source code can print, found in its syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from tests.support.printed_texts import PACKAGES, ROOT

_UNKNOWN = "…"
"""In place of what is filled in."""


@dataclass(frozen=True)
class Remedy:
    """A text, and where it is written."""

    place: str
    text: str


@cache
def remedies() -> tuple[Remedy, ...]:
    """Returns what the code gives as `remedy`: to errors, to findings, and to functions that pass it on to these, and what
    dictionaries named `…_REMEDIES` have. Texts that are given on from an error to another one are left out."""
    return tuple(dict.fromkeys(_found(_Source())))


class _Source:
    """All modules. A function or class is known by its name alone."""

    texts: dict[str, ast.expr]

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
        return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}

    @cached_property
    def errors(self) -> set[str]:
        """The classes of errors with a remedy."""
        nodes = (node for tree in self.modules.values() for node in ast.walk(tree))
        bases = {
            node.name: {ast.unparse(base) for base in node.bases} for node in nodes if isinstance(node, ast.ClassDef)
        }
        known = {"TidemarkError"}
        while found := {name for name, above in bases.items() if above & known} - known:
            known |= found
        return known

    @cached_property
    def takers(self) -> dict[str, int]:
        """The number of the argument `remedy` of each function, and of each class by its fields or its constructor."""
        found: dict[str, int] = dict.fromkeys(self.errors, 1)
        for tree in self.modules.values():
            for node in ast.walk(tree):
                match node:
                    case ast.ClassDef(name=name, body=body):
                        fields = [
                            s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                        ]
                        methods = [s for s in body if isinstance(s, ast.FunctionDef) and s.name == "__init__"]
                        names = _parameters(methods[0])[1:] if methods else fields
                    case ast.FunctionDef(name=name):
                        names = _parameters(node)
                    case _:
                        continue
                if "remedy" in names:
                    found[name] = names.index("remedy")
                elif name in self.errors and "message" not in names and names:
                    found.pop(name, None)  # it makes its texts itself, and gives them to its base
        return found

    @cached_property
    def constants(self) -> dict[str, dict[str, ast.expr]]:
        """The constants of each module."""
        return {
            path: {
                target.id: node.value
                for node in tree.body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for path, tree in self.modules.items()
        }

    def enter(self, path: str) -> None:
        """Lets names mean the constants of this module first. Those of others may be imported."""
        self.texts = {name: value for known in self.constants.values() for name, value in known.items()}
        self.texts |= self.constants[path]

    @cached_property
    def returned(self) -> dict[str, list[tuple[ast.expr, dict[str, list[ast.expr]]]]]:
        """The texts that functions return, alone or as the second of a pair, each with the function's variables."""
        found: dict[str, list[tuple[ast.expr, dict[str, list[ast.expr]]]]] = {}
        for tree in self.modules.values():
            for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
                local = _assigned(function)
                for node in _own_nodes(function):
                    match node:
                        case ast.Return(value=ast.Tuple(elts=[_, given])):
                            pass
                        case ast.Return(value=ast.JoinedStr() | ast.Constant() | ast.IfExp() | ast.BinOp() as given):
                            pass
                        case _:
                            continue
                    found.setdefault(function.name, []).append((given, local))
        return found


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]


def _found(source: _Source) -> Iterator[Remedy]:
    for path, tree in source.modules.items():
        source.enter(path)
        for scope in ast.walk(tree):
            match scope:
                case ast.FunctionDef():
                    local = _assigned(scope)
                    for node in _own_nodes(scope):
                        if isinstance(node, ast.Call) and (given := _argument(source, node)) is not None:
                            for text in _texts(source, local, given):
                                yield Remedy(f"{path}:{scope.name}", text)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    if name.endswith("_REMEDIES") and isinstance(scope.value, ast.Dict):
                        for value in scope.value.values:
                            for text in _texts(source, {}, value):
                                yield Remedy(f"{path}:{name}", text)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Without those of functions inside."""
    open_: list[ast.AST] = list(function.body)
    while open_:
        node = open_.pop()
        yield node
        open_ += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in _own_nodes(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
            ):
                found.setdefault(name, []).append(value)
    return found


def _argument(source: _Source, call: ast.Call) -> ast.expr | None:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case ast.Call() | ast.IfExp():
            name = "TidemarkError"  # the class of an error that is chosen there
        case _:
            return None
    for keyword in call.keywords:
        if keyword.arg == "remedy":
            return keyword.value
    number = source.takers.get(name)
    if number is None:
        return None
    starred = next((a for a in call.args if isinstance(a, ast.Starred)), None)
    if starred is not None:
        return starred.value
    return call.args[number] if len(call.args) > number else None


def _texts(source: _Source, local: dict[str, list[ast.expr]], node: ast.expr) -> list[str]:
    """The texts that an expression may be; none if it is only passed on."""
    match node:
        case ast.Constant(value=str(text)):
            return [text] if text else []
        case ast.JoinedStr() | ast.BinOp(op=ast.Add()):
            text = _joined(source, local, node)
            return [text] if text.strip(f"{_UNKNOWN} .") else []
        case ast.IfExp(body=one, orelse=other):
            return [*_texts(source, local, one), *_texts(source, local, other)]
        case ast.Name(id=name) if name in local:
            others = {other: values for other, values in local.items() if other != name}
            return [text for value in local[name] for text in _texts(source, others, value)]
        case ast.Name(id=name) if name in source.texts:
            return _texts(source, {}, source.texts[name])
        case ast.Call(func=ast.Name(id=name)) if name in source.returned:
            return [text for given, inside in source.returned[name] for text in _texts(source, inside, given)]
        case ast.Call(func=ast.Attribute(attr="get", value=known), args=[_, default]):
            values = known.values if isinstance(known, ast.Dict) else []
            return [text for value in (*values, default) for text in _texts(source, local, value)]
        case _:
            return []


def _joined(source: _Source, local: dict[str, list[ast.expr]], node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_joined(source, local, part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined(source, local, left) + _joined(source, local, right)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name) if name in source.texts:
            return _joined(source, {}, source.texts[name])
        case _:
            return _UNKNOWN
