"""Looks through a ``.pt2`` archive for what could run code when ``torch.export.load`` opens it.

torch warns that its loader must not be given files of strangers. Read in torch 2.13 (``torch/export/pt2_archive``,
``torch/_export/serde``), the ways are: tensors and objects that are stored as pickles, sample inputs, compiled
libraries, expressions of shapes (evaluated by sympy as Python), and the names of functions in the graph. What
passes here has none of the first three, and of the others only words on the lists below.
"""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_WORD = re.compile(r"[A-Za-z_]\w*")
_ARITHMETIC = frozenset(
    _WORD.findall(
        """
        Abs Add And CeilDiv CeilToInt CleanDiv Eq Equality False FloatPow FloatTrueDiv FloorDiv FloorToInt Ge
        GreaterThan Gt Identity IntTrueDiv Integer LShift Le LessThan Lt Max Min Mod ModularIndexing Mul Ne Not Or
        Pow PowByNatural PythonMod RShift Rational RoundDecimal RoundToInt StrictGreaterThan StrictLessThan Symbol
        ToFloat True TruncToFloat TruncToInt Unequality Where ceiling finite floor integer int_oo nan negative
        nonnegative nonzero oo positive real zoo
        """
    )
)
_SYMBOL = re.compile(r"[a-z]{1,8}\d+")
_NAME = re.compile(r"'\w{1,80}'")
_PLAIN = re.compile(r"[\w\s+\-*/%(),.<>=!&|~]*")

_FUNCTIONS = (
    r"(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem|lshift|rshift)"
)
_NAMESPACES = r"(aten|prim|prims|higher_order|quantized_decomposed|quantized|torchvision|_c10d_functional)"
_FILE_OPERATORS = re.compile(r"torch\.ops\.aten\.(save|from_file)\b")
_TARGET = re.compile(rf"torch\.ops\.{_NAMESPACES}\.\w+(\.\w+)?|torch\.sym_\w+|math\.\w+|_operator\.{_FUNCTIONS}")


def why_unsafe(path: Path) -> str:
    """Why a ``.pt2`` file could run code when it is loaded; empty if it cannot.

    Raises:
        zipfile.BadZipFile: It is no zip file.
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if reason := _entry(archive, name):
                return reason
    return ""


def _entry(archive: zipfile.ZipFile, name: str) -> str:
    short = name.rpartition("/")[2]
    if short == "serialized_exported_program.json":
        return "it is in the format of torch before 2.8, which stores tensors as pickles"
    if short.startswith(("custom_obj_", "opaque_obj_")):
        return f"it holds a pickled object, {name}"
    if "/aotinductor/" in name or short.endswith((".so", ".dll", ".dylib")):
        return f"it holds compiled code, {name}"
    if "/sample_inputs/" in name and not _safe_pickle(archive.read(name)):
        return f"its sample inputs are a pickle of more than tensors, {name}"
    if short.endswith(".json"):
        return _document(archive.read(name), name)
    return ""


def _safe_pickle(data: bytes) -> bool:
    if not data:  # no inputs at all, as in the files that Perdure writes
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001  whatever it is, it is no plain pickle
        return False
    return True


def _document(data: bytes, name: str) -> str:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return f"{name} is no JSON that can be read"
    for key, value in _walk(document):
        if key == "use_pickle" and value is not False:
            return f"it stores a tensor as a pickle ({name})"
        if key in ("target", "as_operator") and isinstance(value, str) and not _is_operator(value):
            return f"its graph calls {value[:80]}"
        if key == "expr_str" and not _is_arithmetic(value):
            return f"its graph holds the expression {str(value)[:80]}"
    return ""


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            yield from each.items()
            stack += each.values()
        elif isinstance(each, list):
            stack += each


def _is_operator(target: str) -> bool:
    return _TARGET.fullmatch(target) is not None and not _FILE_OPERATORS.match(target)


def _is_arithmetic(expression: Any) -> bool:
    """Sympy's own way of writing: ``FloorDiv(Symbol('s31', positive=True), Integer(2))``."""
    if not isinstance(expression, str):
        return False
    bare = _NAME.sub("", expression)
    words_known = all(word in _ARITHMETIC or _SYMBOL.fullmatch(word) for word in _WORD.findall(bare))
    return words_known and _PLAIN.fullmatch(bare) is not None
