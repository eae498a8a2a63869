"""Stand-ins for modules that a package imports and its parsers do not need. For drivers only."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        return _plain(cls, name)

    def __or__(cls, other: Any) -> Any:
        return object

    def __ror__(cls, other: Any) -> Any:
        return object


class _Anything(metaclass=_Meta):
    """Can be called, inherited from, subscripted, used as a decorator or as a field's type."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return args[0] if _decorates(args, named) else object.__new__(cls)

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        return _plain(self, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return args[0] if _decorates(args, named) else self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Meta(name, (_Anything,), {})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str, heavy: tuple[str, ...]) -> None:
        self._package = package
        self._heavy = heavy

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        above = name.rpartition(".")[0]
        if self._heavy:
            stands_in = any(name == one or name.startswith(f"{one}.") for one in self._heavy)
        elif above:
            stands_in = isinstance(sys.modules.get(above), _Module)
        else:
            stands_in = name != self._package and name not in sys.stdlib_module_names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if stands_in else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(package: str, source: str, heavy: tuple[str, ...] = ()) -> None:
    """``package`` is taken from ``source`` without running its ``__init__``; ``heavy`` parts of it
    and whatever is not installed are stood in for."""
    module = types.ModuleType(package)
    module.__path__ = [f"{source}/{package}"]
    sys.modules[package] = module
    sys.meta_path.append(_Finder(package, ()))
    if heavy:
        sys.meta_path.insert(0, _Finder(package, tuple(f"{package}.{name}" for name in heavy)))


def _plain(owner: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return owner


def _decorates(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return len(args) == 1 and callable(args[0]) and not named
