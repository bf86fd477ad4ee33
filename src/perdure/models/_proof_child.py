"""The process that proves model files: it knows nothing of the training, and Perdure is not imported in it.

Run as a program. Reads jobs from stdin and answers on stdout, a JSON document a line each. A job names a file, how
to open it, and what should be in it; the answer lists problems, and the differences of the outputs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import torch
import xxhash


def main() -> None:
    """Answer jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = _prove(job)
        except Exception as error:  # noqa: BLE001  told to the parent
            traceback.print_exc()
            answer = {"problems": [f"{type(error).__name__}: {error}"]}
        print(
            json.dumps({**answer, "id": job["id"], "perdure": "perdure" in sys.modules}), file=answers, flush=True
        )


def _prove(job: dict[str, Any]) -> dict[str, Any]:
    if not _bytes_in(job["path"]):
        return {"problems": ["it is empty"]}
    weights, make_run = _OPEN[job["kind"]](job)
    problems = [] if weights is None else _compare_weights(job["expected"], weights, job.get("all", True))
    answer = {"problems": problems, "tensors": _common(job["expected"], weights or {})}
    if problems or not job.get("batches"):
        return answer
    try:
        problems, outputs = _forward(job, make_run())
    except Exception as error:
        if not job.get("graph"):
            raise
        problems, outputs = [f"{type(error).__name__}: {error}"], {}
    if problems and job.get("graph"):  # the weights are right, whatever is wrong with the graph that carries them
        return answer | {"no_pass": problems[0]}
    return answer | {"problems": problems, "outputs": outputs}


def _forward(job: dict[str, Any], run: Any) -> tuple[list[str], dict[str, dict[str, float]]]:
    """What is wrong with the outputs, and how far each is from the live model's."""
    problems: list[str] = []
    outputs: dict[str, dict[str, float]] = {}
    for batch in torch.load(job["batches"], weights_only=True):
        problems += _compare_outputs(batch, run(batch["args"], batch["kwargs"]), outputs)
    return problems, outputs


def _bytes_in(path: str) -> int:
    return os.path.getsize(path)


def _common(expected: dict[str, Any], weights: dict[str, Any]) -> int:
    return len(expected.keys() & weights.keys())


# -------------------------------------------------------------------- ways to open a file
# Each gives the weights, and a function that makes what runs the model.


def _open_pth(job: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    found = torch.load(job["path"], map_location="cpu", weights_only=True, mmap=True)
    weights = found[job["key"]] if job.get("key") else found
    return weights, lambda: _graph_with(job, weights)


def _open_safetensors(job: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    from safetensors.torch import load_file

    weights = load_file(job["path"])
    return weights, lambda: _graph_with(job, weights)


def _open_program(job: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    program = torch.export.load(job["path"])
    return dict(program.state_dict), lambda: _runner(program)


def _open_onnx(job: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(job["path"], options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]

    def run(args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        tensors = [leaf for leaf in _leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
        by_name = dict(zip(job["inputs"], tensors, strict=True))
        given = {name: by_name[name].numpy() for name in names}
        return [torch.from_numpy(array.copy()) for array in session.run(None, given)]

    return _initializers(job["path"]), lambda: run


def _initializers(path: str) -> dict[str, Any]:
    import onnx

    model = onnx.load(path)
    return {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in model.graph.initializer
    }


_OPEN = {"pth": _open_pth, "safetensors": _open_safetensors, "pt2": _open_program, "onnx": _open_onnx}


def _graph_with(job: dict[str, Any], weights: dict[str, Any]) -> Any:
    """The traced graph with the weights of the file in the place of its own."""
    program = torch.export.load(job["graph"])
    for name, old in program.state_dict.items():
        new = weights[name]
        program.state_dict[name] = torch.nn.Parameter(new, False) if isinstance(old, torch.nn.Parameter) else new
    return _runner(program)


def _runner(program: Any) -> Any:
    module = program.module()
    fresh = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def run(args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            outputs = [leaf for leaf in _leaves(module(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            for name, buffer in module.named_buffers():  # models may count their calls: each batch is the first
                buffer.copy_(fresh[name])
        return outputs

    return run


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


# -------------------------------------------------------------------- comparing


def _compare_weights(expected: dict[str, Any], found: dict[str, Any], every: bool) -> list[str]:
    """``every``: each expected tensor must be there; else only those that are there must be right."""
    problems = [f"{name}: not there" for name in expected if every and name not in found]
    problems += [f"{name}: not in the model" for name in found if every and name not in expected]
    for name in expected.keys() & found.keys():
        tensor, (dtype, shape, digest) = found[name], expected[name]
        if [str(tensor.dtype), list(tensor.shape)] != [dtype, shape]:
            problems.append(f"{name}: {dtype} {shape} became {tensor.dtype} {list(tensor.shape)}")
        elif digest_of(tensor) != digest:
            problems.append(f"{name}: other bytes")
    return sorted(problems)


def octets(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor on the CPU, row by row. An axis of size 1 may have any stride: ``view`` fails."""
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def digest_of(tensor: torch.Tensor) -> str:
    """A digest of the bytes of a tensor."""
    return xxhash.xxh3_128_hexdigest(octets(tensor))


def _compare_outputs(
    batch: dict[str, Any], found: list[torch.Tensor], worst: dict[str, dict[str, float]]
) -> list[str]:
    if len(found) != len(batch["outputs"]):
        return [f"{len(found)} outputs, and the live model has {len(batch['outputs'])}"]
    problems = []
    for (name, expected), got in zip(batch["outputs"].items(), found, strict=True):
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            problems.append(
                f"output {name}: {got.dtype} {tuple(got.shape)}, live {expected.dtype} {tuple(expected.shape)}"
            )
            continue
        largest, scale = distance(expected, got)
        before = worst.setdefault(name, {"largest": 0.0, "scale": 0.0})
        before["largest"], before["scale"] = max(before["largest"], largest), max(before["scale"], scale)
    return problems


def distance(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, float]:
    """Largest absolute difference, and largest absolute value. NaN in one place, and infinities, can be equal."""
    if not expected.numel():
        return 0.0, 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    ours, theirs = expected.to(wide), got.to(wide)
    apart = (ours - theirs).abs()
    apart[(ours == theirs) | (ours.isnan() & theirs.isnan())] = 0
    apart = apart.nan_to_num(nan=float("inf"))
    size = ours.abs()
    size = size[size.isfinite()]
    return float(apart.max()), float(size.max()) if size.numel() else 0.0


if __name__ == "__main__":
    main()
