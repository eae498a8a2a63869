"""A stand-in for graphs of a device: operations are recorded and done again on the same memory, so
that all else is as it was when they were recorded: numbers of the host, choices, new tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default,
    aten.bincount.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.lift_fresh.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_dim.default,
    aten._unique2.default,
}
"""What needs to know what a tensor holds, or brings what the host holds to the device."""


class NotCapturable(Exception):
    pass


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.launching = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING:
            raise NotCapturable(str(func))
        out = func(*args, **(kwargs or {}))
        self.entries.append((func, args, kwargs or {}, out))
        return out

    def launch(self, run: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """A kernel of Triton, which is seen by no dispatch when it is interpreted."""
        self.launching = True
        with _disable_current_modes():
            run(*args, **kwargs)
        self.launching = False
        self.entries.append((run, args, kwargs, None))

    def replay(self) -> None:
        for func, args, kwargs, out in self.entries:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeCapture:
    """A ``Capture``. ``recorded`` counts by tag."""

    def __init__(self) -> None:
        self.recorded = Counter[str]()
        self.replayed = Counter[str]()

    def __call__(self, tag: str, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        tape = Tape()
        with refusing(tape), tape:
            done = work()
        self.recorded[tag] += 1

        def replay() -> None:
            self.replayed[tag] += 1
            tape.replay()

        return done, replay


@contextmanager
def refusing(tape: Tape) -> Iterator[None]:
    """On the CPU a tensor is read without a dispatch; on a device these would wait."""
    kept: dict[str, Any] = {}
    for name in ("tolist", "numpy", "item", "cpu", "__bool__", "__float__", "__int__"):
        kept[name] = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, _refused(tape, name, kept[name]))
    try:
        with _triton_on(tape):
            yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def _refused(tape: Tape, name: str, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not tape.launching:
            raise NotCapturable(name)
        return method(*args, **kwargs)

    return call


@contextmanager
def _triton_on(tape: Tape) -> Iterator[None]:
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        yield
        return
    run = GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        tape.launch(run, (self, *args), kwargs)

    GridExecutor.__call__ = launch
    try:
        yield
    finally:
        GridExecutor.__call__ = run
