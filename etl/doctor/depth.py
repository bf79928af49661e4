"""How many dense layers a network applies in series. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class DenseDepth(TorchFunctionMode):
    """Counts the dense layers in series between inputs and outputs of `model`, while in force.

    Layers are in series if no path leads around them: residual connections, attention and parallel branches are such
    paths. A perceptron of 25 layers has 25 in series, a transformer those before and after its blocks. Outputs that
    are not computed from the inputs by functions of torch count as 0.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.layers = 0
        self._model = model
        self._hooks: list[Any] = []
        # Of each tensor that was computed from the inputs: the fewest dense layers on the way to it.
        self._passed: Any = WeakTensorKeyDictionary()

    def __enter__(self) -> Self:
        self._hooks = [
            self._model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self._model.register_forward_hook(self._end),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        passed = self._layers_before((arguments, keywords))
        if passed:
            self._note(result, min(passed) + (function is torch.nn.functional.linear))
        return result

    def _begin(self, _: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._note((arguments, keywords), 0)

    def _end(self, _: torch.nn.Module, __: tuple[Any, ...], outputs: Any) -> None:
        self.layers = max(self._layers_before(outputs), default=0)

    def _note(self, values: Any, layers: int) -> None:
        for tensor in _tensors(values):
            self._passed[tensor] = layers

    def _layers_before(self, values: Any) -> list[int]:
        return [self._passed[tensor] for tensor in _tensors(values) if tensor in self._passed]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, (tuple, list)):
        for each in values:
            yield from _tensors(each)
