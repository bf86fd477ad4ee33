"""How a stranger loads each format: three lines of Python, without Perdure."""

from __future__ import annotations

import re
from keyword import iskeyword

from perdure.models.formats import Signature

_GRAPH_FREE = "model.load_state_dict(weights)  # model: built by your own code; then model.eval()"

_LINES = {
    "pth": (
        "import torch",
        'weights = torch.load({file}, map_location="cpu", weights_only=True)',
        _GRAPH_FREE,
    ),
    "pth-classic": (
        "import torch",
        'checkpoint = torch.load({file}, map_location="cpu", weights_only=True)',
        'model.load_state_dict(checkpoint["model_state_dict"])  # model: built by your own code',
    ),
    "safetensors": (
        "from safetensors.torch import load_file",
        "weights = load_file({file})",
        _GRAPH_FREE,
    ),
    "pt2": (
        "import torch",
        "model = torch.export.load({file}).module()",
        "outputs = model({inputs})",
    ),
    "onnx": (
        "import onnxruntime",
        "session = onnxruntime.InferenceSession({file})",
        "outputs = session.run(None, {{{feed}}})  # numpy arrays",
    ),
    "keras": (
        "import keras",
        "model = keras.saving.load_model({file})",
        "outputs = model.predict({nested})",
    ),
    "savedmodel": (
        "import tensorflow as tf",
        "model = tf.saved_model.load({file})",
        "outputs = {serve}",
    ),
}
_LINES |= {"h5": _LINES["keras"]}


def load_lines(format: str, file: str, signature: Signature) -> list[str]:
    """Three lines of Python that load a file and, where it holds a graph, run it.

    Args:
        format: Name of the format.
        file: Name of the file, beside which the lines are run.
        signature: Gives the inputs their names; one input named ``inputs`` is assumed if it has none.

    Returns:
        The lines. They use a variable of each input's name, and ``model`` where the format has no graph.
    """
    ports = [port.name for port in signature.inputs] or ["inputs"]
    names = [variable(port, index) for index, port in enumerate(ports)]
    feed = ", ".join(f"{_quoted(port)}: {name}" for port, name in zip(ports, names, strict=True))
    keywords = {port.name for port in signature.inputs if port.keyword}
    given = [f"{p}={n}" if p in keywords else n for p, n in zip(ports, names, strict=True)]
    alone = len(names) == 1
    words = {
        "file": _quoted(file),
        "inputs": ", ".join(given),
        "feed": feed,
        "nested": names[0] if alone else f"{{{feed}}}",
        "serve": f"model.serve({names[0]})" if alone else f'model.signatures["serving_default"](**{{{feed}}})',
    }
    return [line.format(**words) for line in _LINES.get(format, ())]


def variable(port: str, index: int) -> str:
    """The name of a variable for an input; what is no identifier becomes one."""
    name = re.sub(r"\W", "_", port.partition(":")[0])
    return name if name.isidentifier() and not iskeyword(name) else f"input_{index}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
