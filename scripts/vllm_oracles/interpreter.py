"""Follows functions of vLLM's sources on a GPU of a given compute capability, without running them.

What only a running engine knows is `Unknown`. Where the sources ask whether such a value is true,
`decide` answers; the answers that a run used are in `decided`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.vllm_oracles.expressions import (
    binary,
    compare,
    is_named_tuple,
    negated,
    plain_builtins,
    python_type_is,
    unknown_among,
)
from scripts.vllm_oracles.source_tree import SourceTree
from scripts.vllm_oracles.values import (
    Atom,
    Builtin,
    CannotTellError,
    Class,
    Function,
    Instance,
    Member,
    Module,
    Preset,
    RaisedError,
    Unknown,
    text_of,
)

_DTYPE = re.compile(r"torch\.(b?float|u?int|float8|float4)\w*|torch\.half")
_BYTES = {"torch.bfloat16": 2, "torch.float16": 2, "torch.half": 2, "torch.uint8": 1,
          "torch.int8": 1, "torch.float8_e4m3fn": 1, "torch.float8_e5m2": 1}  # fmt: skip
_STEPS = 200_000  # statements of one run: more is a loop that this reader does not understand


class _Return(Exception):  # noqa: N818
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Continue(Exception):  # noqa: N818
    pass


class _Break(Exception):  # noqa: N818
    pass


@dataclass(frozen=True)
class _Above:
    """What `super()` is in a method of `owner`."""

    owner: Class
    bound: Any


Hook = Callable[["Interpreter", Any, str], Any]


class Interpreter:
    """One run: sources, the variables that the person has set, and who decides what is unknown."""

    def __init__(
        self,
        tree: SourceTree,
        environment: dict[str, str],
        decide: Callable[[str], bool],
        hook: Hook,
    ) -> None:
        self.tree, self.environment, self.hook = tree, environment, hook
        self._decide = decide
        self.decided: dict[str, bool] = {}
        self.variables: set[str] = set()
        self.asked_device = False  # whether any answer depends on the compute capability
        self.watch: Callable[[str, str, Class, list[Any]], Any] | None = None
        self._globals: dict[tuple[str, str], Any] = {}
        self._mro: dict[Class, list[Class]] = {}
        self._enums: dict[Class, bool] = {}
        self._members: dict[Class, list[Member]] = {}
        self._left = _STEPS
        self._builtins = plain_builtins(self.truth)

    # What is unknown

    def truth(self, value: Any) -> bool:
        """Whether a value is true; `decide` is asked where nobody can know."""
        if isinstance(value, Preset):
            return True
        if not isinstance(value, Unknown):
            return bool(value)
        text, expected = value.text, True
        while text.startswith("not "):
            text, expected = text[4:], not expected
        if text not in self.decided:
            self.decided[text] = self._decide(text)
        return self.decided[text] is expected

    # Names

    def name(self, module: str, name: str) -> Any:
        """What a name of a module is bound to."""
        key = (module, name)
        if key not in self._globals:
            hooked = self.hook(self, Module(module), name)
            self._globals[key] = self._bound(module, name) if hooked is NotImplemented else hooked
        return self._globals[key]

    def replace(self, module: str, name: str, value: Any) -> None:
        """Binds a name of a module to something else."""
        self._globals[module, name] = value

    def _bound(self, module: str, name: str) -> Any:
        statement = self.tree.bindings(module).get(name)
        match statement:
            case None:
                if self.tree.path(f"{module}.{name}"):
                    return Module(f"{module}.{name}")
                return Unknown(f"{module}.{name}")
            case ast.FunctionDef():
                return Function(module, statement, [])
            case ast.ClassDef():
                return Class(module, name, statement)
            case ast.Import() | ast.ImportFrom():
                return self.imported(module, statement, name)
            case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is not None:
                return self.value(value, module, [])
        raise CannotTellError(f"{module}.{name}")

    def imported(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> Any:
        """What an import statement binds to a name."""
        alias = next(
            alias for alias in statement.names if name in (alias.asname, alias.name.split(".")[0])
            or alias.name == name
        )  # fmt: skip
        if isinstance(statement, ast.Import):
            target = alias.name if alias.asname else alias.name.split(".")[0]
            return Module(target) if self.tree.path(target) else Unknown(target)
        source = statement.module or ""
        if statement.level:
            parts = module.split(".")
            keep = len(parts) - statement.level + self.tree.is_package(module)
            source = ".".join([*parts[:keep], *([source] if source else [])])
        if self.tree.path(source):
            return self.name(source, alias.name)
        return self._external(f"{source}.{alias.name}")

    @staticmethod
    def _external(path: str) -> Any:
        return Atom(path) if _DTYPE.fullmatch(path) else Unknown(path)

    # Attributes

    def attribute(self, value: Any, name: str) -> Any:
        """`value.name`."""
        hooked = self.hook(self, value, name)
        if hooked is not NotImplemented:
            return hooked
        match value:
            case Module():
                return self.name(value.name, name)
            case Unknown(text):
                return self._external(f"{text}.{name}")
            case Preset():
                return value.get(name)
            case Member():
                if name in ("name", "value", "_value_"):
                    return value.name if name == "name" else value.value
                return self._of_class(value.of, name, value)
            case Class():
                if name in ("__name__", "__qualname__"):
                    return value.name
                return self._of_class(value, name, value)
            case Instance():
                if name in value.fields:
                    return value.fields[name]
                return self._of_class(value.of, name, value)
            case Atom(path):
                return _BYTES.get(path, 4) if name == "itemsize" else Unknown(f"{path}.{name}")
            case list() | dict() | set() | str() | tuple():
                return Builtin(getattr(value, name))
            case _Above():
                return self._of_class_after(value, name)
        raise CannotTellError(f"attribute {name} of {text_of(value)}")

    def mro(self, of: Class) -> list[Class]:
        """A class and those it is made from, as far as vLLM has them."""
        if of in self._mro:
            return self._mro[of]
        classes = [of]
        for base in of.node.bases:
            node = base.value if isinstance(base, ast.Subscript) else base
            parent = self.value(node, of.module, [])
            if isinstance(parent, Class):
                classes += [ancestor for ancestor in self.mro(parent) if ancestor not in classes]
        self._mro[of] = classes
        return classes

    def is_enum(self, of: Class) -> bool:
        """Whether a class is an enumeration."""
        if of not in self._enums:
            self._enums[of] = self._is_enum(of)
        return self._enums[of]

    def _is_enum(self, of: Class) -> bool:
        return any(
            re.search(r"\b(Int|Str)?(Enum|Flag)\b", ast.unparse(base))
            for ancestor in self.mro(of)
            for base in ancestor.node.bases
        )

    def members(self, of: Class) -> list[Member]:
        """The members of an enumeration, an alias as that which it stands for."""
        if of in self._members:
            return self._members[of]
        members: list[Member] = []
        for statement in of.node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                if not name.startswith("_"):
                    value = self.value(statement.value, of.module, [])
                    if isinstance(value, Unknown):  # enum.auto()
                        value = f"auto {len(members)}"
                    members.append(Member(of, name, value))
        self._members[of] = members
        return members

    def _of_class(self, of: Class, name: str, bound: Any) -> Any:
        for ancestor in self.mro(of):
            match self.tree.body(ancestor.node).get(name):
                case ast.FunctionDef() as function:
                    return self._method(ancestor, function, bound)
                case ast.Assign() if self.is_enum(ancestor):
                    return self._member(ancestor, name)
                case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is not None:
                    return self.value(value, ancestor.module, [])
        for ancestor in self.mro(of):
            set_later = self.tree.bindings(ancestor.module).get(f"{ancestor.name}.{name}")
            if isinstance(set_later, ast.Assign):
                return self.value(set_later.value, ancestor.module, [])
        return Unknown(f"{text_of(bound)}.{name}")

    def _of_class_after(self, above: _Above, name: str) -> Any:
        of = above.bound if isinstance(above.bound, Class) else getattr(above.bound, "of", None)
        if not isinstance(of, Class):
            of = above.owner
        chain = self.mro(of)
        later = chain[chain.index(above.owner) + 1 :] if above.owner in chain else []
        for ancestor in later:
            function = self.tree.body(ancestor.node).get(name)
            if isinstance(function, ast.FunctionDef):
                return self._method(ancestor, function, above.bound)
        return Unknown(f"super().{name}")

    def _member(self, of: Class, name: str) -> Member:
        members = self.members(of)
        member = next(candidate for candidate in members if candidate.name == name)
        return next(candidate for candidate in members if candidate.value == member.value)

    def _method(self, of: Class, node: ast.FunctionDef, bound: Any) -> Any:
        kinds = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
        if "staticmethod" in kinds:
            return Function(of.module, node, [], None, of)
        if "classmethod" in kinds:
            target = bound if isinstance(bound, Class) else bound.of
            return Function(of.module, node, [], target, of)
        if isinstance(bound, Class):
            return Function(of.module, node, [], None, of)
        method = Function(of.module, node, [], bound, of)
        is_property = kinds & {"property", "cached_property", "functools.cached_property"}
        return self.call(method, [], {}) if is_property else method

    # Calls

    def call(self, target: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """`target(*args, **named)`."""
        match target:
            case Builtin():
                return target.call(*args, **named)
            case Function():
                return self._run(target, args, named)
            case Class():
                return self._new_instance(target, args, named)
            case Unknown(text):
                arguments = [*map(text_of, args), *(f"{k}={text_of(v)}" for k, v in named.items())]
                inside = ", ".join(arguments)
                return Unknown(f"{text}({inside})")
            case Preset():
                return Unknown(f"{target.name}(...)")
        raise CannotTellError(f"call of {text_of(target)}")

    def _new_instance(self, of: Class, args: list[Any], named: dict[str, Any]) -> Any:
        if self.is_enum(of):
            if unknown_among(args):
                return Unknown(f"{of.name}({text_of(args[0])})")
            return next(member for member in self.members(of) if member.value == args[0])
        fields: dict[str, Any] = {}
        rest = list(args)
        for ancestor in reversed(self.mro(of)):
            for statement in ancestor.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    name = statement.target.id
                    if rest:
                        fields[name] = rest.pop(0)
                    elif name in named:
                        fields[name] = named[name]
                    elif statement.value is not None:
                        fields[name] = self.value(statement.value, ancestor.module, [])
        return Instance(of, fields | named)

    def _run(self, function: Function, args: list[Any], named: dict[str, Any]) -> Any:
        node = function.node
        parameters = node.args
        scope: dict[str, Any] = {}
        values = [*([function.bound] if function.bound is not None else []), *args]
        names = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        scope.update(zip(names, values, strict=False))
        if parameters.vararg:
            scope[parameters.vararg.arg] = tuple(values[len(names) :])
        defaults = dict(
            zip(names[len(names) - len(parameters.defaults) :], parameters.defaults, strict=True)
        )
        defaults |= {
            parameter.arg: default
            for parameter, default in zip(
                parameters.kwonlyargs, parameters.kw_defaults, strict=True
            )
            if default is not None
        }
        parameter_names = {*names, *(parameter.arg for parameter in parameters.kwonlyargs)}
        scope |= {name: value for name, value in named.items() if name in parameter_names}
        if parameters.kwarg:
            scope[parameters.kwarg.arg] = {
                n: v for n, v in named.items() if n not in parameter_names
            }
        for name in parameter_names - scope.keys():
            if name not in defaults:
                raise CannotTellError(f"{text_of(function)} without {name}")
            scope[name] = self.value(defaults[name], function.module, function.outer)
        if function.owner is not None:
            first = values[0] if values else function.owner
            bound = function.bound if function.bound is not None else first
            scope["\0owner"], scope["\0bound"] = function.owner, bound
        scopes = [*function.outer, scope]
        if isinstance(node, ast.Lambda):
            return self.value(node.body, function.module, scopes)
        if self.tree.is_generator(node):
            return Unknown(f"{node.name}(...)")
        try:
            self.block(node.body, function.module, scopes)
        except _Return as answer:
            return answer.value
        return None

    # Statements

    def block(self, body: list[ast.stmt], module: str, scopes: list[dict[str, Any]]) -> None:
        """Follows the statements of a body."""
        for statement in body:
            self._left -= 1
            if self._left < 0:
                raise CannotTellError("too long")
            self._statement(statement, module, scopes)

    def _statement(self, node: ast.stmt, module: str, scopes: list[dict[str, Any]]) -> None:
        match node:
            case ast.Expr():
                self.value(node.value, module, scopes)
            case ast.Return():
                raise _Return(self.value(node.value, module, scopes) if node.value else None)
            case ast.If():
                is_true = self.truth(self.value(node.test, module, scopes))
                self.block(node.body if is_true else node.orelse, module, scopes)
            case ast.Assign():
                value = self.value(node.value, module, scopes)
                for target in node.targets:
                    self._assign(target, value, module, scopes)
            case ast.AnnAssign():
                if node.value is not None:
                    value = self.value(node.value, module, scopes)
                    self._assign(node.target, value, module, scopes)
            case ast.AugAssign():
                left = self.value(node.target, module, scopes)
                value = binary(node.op, left, self.value(node.value, module, scopes))
                self._assign(node.target, value, module, scopes)
            case ast.For():
                self._loop(node, module, scopes)
            case ast.FunctionDef():
                scopes[-1][node.name] = Function(module, node, list(scopes))
            case ast.ClassDef():
                scopes[-1][node.name] = Class(module, node.name, node)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    scopes[-1][name] = self.imported(module, node, name)
            case ast.Raise():
                self._raise(node, module, scopes)
            case ast.Try():
                self._try(node, module, scopes)
            case ast.With():
                self.block(node.body, module, scopes)
            case ast.Continue():
                raise _Continue
            case ast.Break():
                raise _Break
            case ast.Pass() | ast.Assert() | ast.Delete() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                raise CannotTellError(ast.unparse(node)[:80])

    def _loop(self, node: ast.For, module: str, scopes: list[dict[str, Any]]) -> None:
        for item in self._items(self.value(node.iter, module, scopes)):
            self._assign(node.target, item, module, scopes)
            try:
                self.block(node.body, module, scopes)
            except _Continue:
                continue
            except _Break:
                return
        self.block(node.orelse, module, scopes)

    def _raise(self, node: ast.Raise, module: str, scopes: list[dict[str, Any]]) -> None:
        if node.exc is None:
            raise RaisedError("", "")
        exc = node.exc
        if isinstance(exc, ast.Call):
            text = " ".join(text_of(self.value(argument, module, scopes)) for argument in exc.args)
            raise RaisedError(ast.unparse(exc.func), text)
        if isinstance(exc, ast.Name):
            for scope in reversed(scopes):
                if isinstance(scope.get(exc.id), RaisedError):
                    raise scope[exc.id]
        raise RaisedError(ast.unparse(exc), "")

    def _try(self, node: ast.Try, module: str, scopes: list[dict[str, Any]]) -> None:
        try:
            self.block(node.body, module, scopes)
        except RaisedError as error:
            for handler in node.handlers:
                if handler.type is None or error.name in ast.unparse(handler.type) or (
                    "Exception" in ast.unparse(handler.type)
                ):  # fmt: skip
                    if handler.name:
                        scopes[-1][handler.name] = error
                    self.block(handler.body, module, scopes)
                    break
            else:
                raise
        else:
            self.block(node.orelse, module, scopes)
        self.block(node.finalbody, module, scopes)

    def _assign(
        self, target: ast.expr, value: Any, module: str, scopes: list[dict[str, Any]]
    ) -> None:
        match target:
            case ast.Name():
                scopes[-1][target.id] = value
            case ast.Tuple() | ast.List():
                if isinstance(value, Unknown):
                    number = len(target.elts)
                    items: list[Any] = [Unknown(f"{value.text}[{i}]") for i in range(number)]
                else:
                    items = self._items(value)
                for element, item in zip(target.elts, items, strict=False):
                    self._assign(element, item, module, scopes)
            case ast.Subscript():
                holder = self.value(target.value, module, scopes)
                if isinstance(holder, (dict, list)):
                    holder[self.value(target.slice, module, scopes)] = value
            case ast.Attribute():
                holder = self.value(target.value, module, scopes)
                if isinstance(holder, Instance):
                    holder.fields[target.attr] = value

    def _items(self, value: Any) -> list[Any]:
        if isinstance(value, Class) and self.is_enum(value):
            return list(self.members(value))
        if isinstance(value, Instance) and is_named_tuple(value.of):
            return list(value.fields.values())
        if isinstance(value, (Unknown, Preset, Instance, Atom, Class)):
            raise CannotTellError(f"items of {text_of(value)}")
        return list(value)

    # Expressions

    def value(self, node: ast.expr, module: str, scopes: list[dict[str, Any]]) -> Any:
        """The value of an expression."""
        kind = type(node)  # the four most frequent kinds first
        if kind is ast.Name:
            return self._name(node.id, module, scopes)  # type: ignore[attr-defined]
        if kind is ast.Attribute:
            holder = self.value(node.value, module, scopes)  # type: ignore[attr-defined]
            return self.attribute(holder, node.attr)  # type: ignore[attr-defined]
        if kind is ast.Constant:
            return node.value  # type: ignore[attr-defined]
        if kind is ast.Call:
            return self._call(node, module, scopes)  # type: ignore[arg-type]

        def inner(expression: ast.expr) -> Any:
            return self.value(expression, module, scopes)

        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                items = list(self._elements(node.elts, module, scopes))
                container: Any = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
                return container(items)
            case ast.Dict():
                return self._dict(node, module, scopes)
            case ast.BoolOp():
                return self._bool(node, module, scopes)
            case ast.UnaryOp(op=ast.Not()):
                operand = inner(node.operand)
                return negated(operand) if isinstance(operand, Unknown) else not self.truth(operand)
            case ast.UnaryOp():
                operand = inner(node.operand)
                if isinstance(operand, Unknown):
                    return Unknown(f"-{operand.text}")
                return -operand if isinstance(node.op, ast.USub) else operand
            case ast.BinOp():
                return binary(node.op, inner(node.left), inner(node.right))
            case ast.Compare():
                return self._compare(node, module, scopes)
            case ast.IfExp():
                return inner(node.body if self.truth(inner(node.test)) else node.orelse)
            case ast.NamedExpr():
                bound = inner(node.value)
                scopes[-1][node.target.id] = bound
                return bound
            case ast.Subscript():
                return self._subscript(inner(node.value), node, inner)
            case ast.JoinedStr():
                return "".join(self._piece(piece, inner) for piece in node.values)
            case ast.Lambda():
                return Function(module, node, list(scopes))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                elements = list(self._comprehension(node.generators, node.elt, module, scopes))
                return set(elements) if isinstance(node, ast.SetComp) else elements
            case ast.DictComp():
                pair = ast.Tuple([node.key, node.value], ast.Load())
                return dict(self._comprehension(node.generators, pair, module, scopes))
        raise CannotTellError(ast.unparse(node)[:80])

    def _name(self, name: str, module: str, scopes: list[dict[str, Any]]) -> Any:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        if name in self.tree.bindings(module):
            return self.name(module, name)
        if name in self._builtins:
            return Builtin(self._builtins[name])
        return Unknown(name)

    def _elements(self, elements: list[ast.expr], module: str, scopes: list[Any]) -> Iterator[Any]:
        for element in elements:
            if isinstance(element, ast.Starred):
                yield from self._items(self.value(element.value, module, scopes))
            else:
                yield self.value(element, module, scopes)

    def _dict(self, node: ast.Dict, module: str, scopes: list[Any]) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                entries |= self.value(value, module, scopes)
            else:
                entries[self.value(key, module, scopes)] = self.value(value, module, scopes)
        return entries

    def _bool(self, node: ast.BoolOp, module: str, scopes: list[Any]) -> Any:
        is_and = isinstance(node.op, ast.And)
        result: Any = None
        for operand in node.values:
            result = self.value(operand, module, scopes)
            if self.truth(result) is not is_and:
                return False if is_and and isinstance(result, Unknown) else (
                    True if isinstance(result, Unknown) else result
                )  # fmt: skip
        return is_and if isinstance(result, Unknown) else result

    def _compare(self, node: ast.Compare, module: str, scopes: list[Any]) -> Any:
        left = self.value(node.left, module, scopes)
        result: Any = True
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, module, scopes)
            result = compare(op, left, right)
            if len(node.ops) > 1:
                result = self.truth(result)
            if result is False:
                return False
            left = right
        return result

    def _subscript(self, holder: Any, node: ast.Subscript, inner: Callable[[Any], Any]) -> Any:
        if isinstance(holder, (Unknown, Preset)):
            return Unknown(f"{text_of(holder)}[{ast.unparse(node.slice)}]")
        if isinstance(holder, Class):
            if self.is_enum(holder):
                return self._member(holder, inner(node.slice))
            return holder  # a generic class with its parameters
        if isinstance(holder, Instance):
            holder = self._items(holder)
        if isinstance(node.slice, ast.Slice):
            bounds = [inner(b) if b else None for b in (node.slice.lower, node.slice.upper)]
            return holder[slice(*bounds)]
        key = inner(node.slice)
        if isinstance(key, Unknown):
            return Unknown(f"{text_of(holder)}[{key.text}]")
        try:
            return holder[key]
        except (KeyError, IndexError) as error:
            raise RaisedError(type(error).__name__, str(error)) from error

    def _piece(self, node: ast.expr, inner: Callable[[Any], Any]) -> str:
        if isinstance(node, ast.FormattedValue):
            value = inner(node.value)
            return value if isinstance(value, str) else text_of(value)
        return str(inner(node))

    def _comprehension(
        self, generators: list[ast.comprehension], element: ast.expr, module: str, scopes: list[Any]
    ) -> Iterator[Any]:
        first, *rest = generators
        for item in self._items(self.value(first.iter, module, scopes)):
            inside = [*scopes, {}]
            self._assign(first.target, item, module, inside)
            if all(self.truth(self.value(condition, module, inside)) for condition in first.ifs):
                if rest:
                    yield from self._comprehension(rest, element, module, inside)
                else:
                    yield self.value(element, module, inside)

    def _call(self, node: ast.Call, module: str, scopes: list[Any]) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in (
            "isinstance", "issubclass", "getattr", "hasattr", "super", "type",
        ):  # fmt: skip
            return self._reflection(node, module, scopes)
        args = list(self._elements(node.args, module, scopes))
        if self.watch and isinstance(node.func, ast.Attribute):
            holder = self.value(node.func.value, module, scopes)
            if isinstance(holder, Class):
                owner = ast.unparse(node.func.value)
                answer = self.watch(owner, node.func.attr, holder, args)
                if answer is not NotImplemented:
                    return answer
        target = self.value(node.func, module, scopes)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, module, scopes)
            if keyword.arg is None:
                named |= value if isinstance(value, dict) else {}
            else:
                named[keyword.arg] = value
        return self.call(target, args, named)

    def _reflection(self, node: ast.Call, module: str, scopes: list[Any]) -> Any:
        assert isinstance(node.func, ast.Name)
        kind = node.func.id
        if kind == "super":
            return self._above(scopes)
        args = [self.value(argument, module, scopes) for argument in node.args]
        if kind == "type":
            return args[0].of if isinstance(args[0], (Instance, Member)) else Unknown("type")
        if kind in ("getattr", "hasattr"):
            attribute = self.attribute(args[0], args[1])
            missing = isinstance(attribute, Unknown) and not isinstance(args[0], (Unknown, Preset))
            if kind == "hasattr":
                return (not missing) if not isinstance(attribute, Unknown) or missing else Unknown(
                    f"hasattr({text_of(args[0])}, {args[1]!r})"
                )  # fmt: skip
            return args[2] if missing and len(args) > 2 else attribute
        return self._is_instance(args[0], args[1], kind, node.args[1])

    def _above(self, scopes: list[Any]) -> Any:
        """What `super()` is: the classes after the one whose method this is."""
        for scope in reversed(scopes):
            owner, bound = scope.get("\0owner"), scope.get("\0bound")
            if isinstance(owner, Class) and bound is not None:
                return _Above(owner, bound)
        return Unknown("super()")

    def _is_instance(self, value: Any, kinds: Any, kind: str, expression: ast.expr) -> Any:
        if isinstance(value, (Unknown, Preset)):
            return Unknown(f"{kind}({text_of(value)}, {ast.unparse(expression)})")
        of = value if kind == "issubclass" else getattr(value, "of", None)
        for candidate in kinds if isinstance(kinds, tuple) else (kinds,):
            if isinstance(candidate, Class):
                if isinstance(of, Class) and candidate in self.mro(of):
                    return True
            elif python_type_is(value, text_of(candidate)) or (
                isinstance(candidate, Builtin) and python_type_is(value, ast.unparse(expression))
            ):
                return True
        return False
