"""What the user sees and what a run leaves: renderers of facts. They know only errors and model.

A new renderer is a class with the methods of :class:`launcher.output.base.Renderer` and a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


#: Name -> ``module:Class``, imported on use: a launch that prints no JSON does not pay for it.
RENDERERS = {
    "console": "launcher.output.console:Console",
    "files": "launcher.output.files:Files",
    "jsonl": "launcher.output.jsonl:Jsonl",
    "tmux": "launcher.output.tmux:Tmux",
}


def renderer(name: str) -> Any:
    """The renderer class of this name (a key of ``RENDERERS``); constructors differ, methods do not."""
    import importlib

    module, _, kind = RENDERERS[name].partition(":")
    return getattr(importlib.import_module(module), kind)
