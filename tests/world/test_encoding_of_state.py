"""Tensors, arrays and values through a checkpoint's bytes: same dtype, strides where they matter, and ties."""

import collections
import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.errors import CannotCarryError, CorruptError
from perdure.tensors import dtypes
from perdure.tensors.carried import Pickled
from perdure.tensors.encoding import flatten, to_buffers, unflatten
from perdure.training.world.world import World
from world.ways import through_bytes

DTYPES = sorted([*dtypes._NATURAL, *dtypes._PAIRS, *dtypes._BYTES], key=str)


def raw(tensor):
    """The bytes of a tensor in the order of its elements."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def filled(shape, dtype, seed=0):
    """A tensor whose bytes are arbitrary but legal."""
    count = math.prod(shape)
    if dtype is torch.bool:
        values = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        return values.view(torch.bool).reshape(shape)
    octets = torch.randint(0, 256, (count * dtype.itemsize,), generator=torch.Generator().manual_seed(seed))
    return octets.to(torch.uint8).view(dtype).reshape(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=dtypes.name_of)
def test_every_dtype_comes_back_bit_for_bit(dtype):
    tree = {"some": filled((3, 5), dtype), "none": filled((0, 4), dtype), "one": filled((), dtype)}
    back = through_bytes(tree)
    for name, tensor in tree.items():
        assert back[name].dtype is dtype
        assert back[name].shape == tensor.shape
        assert raw(back[name]) == raw(tensor)


@st.composite
def laid_out(draw):
    """A tensor of any dtype with any strides that slicing, permuting and expanding give."""
    dtype = draw(st.sampled_from([d for d in DTYPES if d is not torch.complex32]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = filled(shape, dtype, draw(st.integers(0, 99)))
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    for axis, size in enumerate(tensor.shape):
        start = draw(st.integers(0, size))
        step = draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


@settings(max_examples=80, deadline=None)
@given(laid_out())
def test_any_layout_comes_back_with_its_values_and_dense_ones_with_their_strides(tensor):
    back = through_bytes({"t": tensor})["t"]
    assert raw(back) == raw(tensor)
    assert back.shape == tensor.shape
    dense = tensor.numel() and (tensor.is_contiguous() or torch.empty_like(tensor).stride() == tensor.stride())
    if dense:
        assert [s for s, n in zip(back.stride(), back.shape) if n > 1] == [
            s for s, n in zip(tensor.stride(), tensor.shape) if n > 1
        ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 3)), min_size=2, max_size=6))
def test_views_of_one_memory_write_through_to_one_another_as_before(cuts):
    base = torch.arange(60, dtype=torch.float32)
    views = [base[start : start + length * step : step] for start, length, step in cuts]
    back = through_bytes(views)
    for view, copy in zip(views, back, strict=True):
        assert torch.equal(view, copy)
    for index, view in enumerate(views):
        view.fill_(-1.0 - index)
        back[index].fill_(-1.0 - index)
        for other, copy in zip(views, back, strict=True):
            assert torch.equal(other, copy)


def test_one_tensor_under_two_names_is_stored_once_in_its_own_dtype():
    weight = torch.randn(4, 3)
    _, leaves = flatten({"emb": weight, "out": weight})
    assert [(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves] == [("emb", "F32", (4, 3))]


def test_a_view_beside_its_base_is_stored_in_the_base():
    base = torch.randn(4, 3)
    _, leaves = flatten({"row": base[1], "bank": base})
    assert [(leaf.name, leaf.shape) for leaf in leaves] == [("bank", (4, 3))]


def test_parts_of_one_memory_that_do_not_overlap_are_stored_apart():
    flat = torch.randn(10)
    _, leaves = flatten({"w": flat[:6].view(2, 3), "b": flat[6:]})
    assert [(leaf.name, leaf.shape) for leaf in leaves] == [("w", (2, 3)), ("b", (4,))]


def test_a_small_view_of_a_large_memory_takes_a_small_place():
    _, leaves = flatten([torch.zeros(1000, 1000)[3, :5]])
    assert sum(leaf.nbytes for leaf in leaves) == 20


def test_views_of_several_dtypes_share_one_memory():
    base = torch.arange(8, dtype=torch.float32)
    tree = {"floats": base, "words": base.view(torch.int32)[2:4], "bytes": base.view(torch.uint8)[5:9]}
    back = through_bytes(tree)
    back["words"].fill_(0)
    assert back["floats"][2:4].tolist() == [0.0, 0.0]
    assert raw(back["bytes"]) == raw(base.view(torch.uint8)[5:8]) + b"\0"


def test_arrays_share_memory_among_themselves_and_with_tensors():
    array = np.arange(10, dtype=np.int16)
    back = through_bytes({"all": array, "tail": array[5:], "tensor": torch.from_numpy(array), "back": array[::-1]})
    back["tensor"].fill_(7)
    assert back["all"].tolist() == [7] * 10
    assert back["tail"].tolist() == [7] * 5
    assert back["back"].tolist() == [7] * 10


def test_restored_memory_is_writable_and_its_own():
    tree = {"a": torch.zeros(3), "b": np.zeros(3)}
    back = through_bytes(tree)
    back["a"].add_(1)
    back["b"] += 1
    assert tree["a"].tolist() == tree["b"].tolist() == [0, 0, 0]


ARRAYS = [
    np.arange(6, dtype=np.uint32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([1 + 2j, 3], dtype=np.complex128),
    np.array([True, False]),
    np.array(["ab", "ü"]),
    np.array([b"ab", b"c"]),
    np.array(["2026-01-02"], dtype="datetime64[D]"),
    np.arange(3, dtype=">i4"),
    np.array([(1, 2.5)], dtype=[("n", "i4"), ("x", "f8")]),
    np.zeros((0, 3), np.float16),
    np.array(2.5, np.longdouble),
    np.arange(5)[::-1],
    np.arange(4.0)[::2][:1],
    np.arange(12).reshape(3, 4)[:, ::2],
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_arrays_keep_dtype_shape_and_order(array):
    back = through_bytes([array])[0]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    if array.flags.f_contiguous:
        assert back.flags.f_contiguous


@pytest.mark.parametrize(
    "scalar",
    [
        np.float64(0.1),
        np.float32("nan"),
        np.int8(-3),
        np.bool_(True),
        np.str_("x"),
        np.complex64(1j),
        np.datetime64("2026"),
    ],
    ids=lambda s: type(s).__name__,
)
def test_numpy_scalars_keep_their_type(scalar):
    back = through_bytes({"s": scalar})["s"]
    assert type(back) is type(scalar)
    assert back.tobytes() == scalar.tobytes()


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize(
    "layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
)
def test_sparse_tensors_keep_their_layout(layout):
    dense = torch.tensor([[0.0, 1, 0, 0], [0, 0, 2, 3], [0, 0, 0, 0], [4, 0, 0, 0]])
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    back = through_bytes({"s": dense.to_sparse(layout=layout, blocksize=block)})["s"]
    assert back.layout is layout
    assert torch.equal(back.to_dense(), dense)


def test_an_uncoalesced_sparse_tensor_stays_uncoalesced():
    tensor = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,), check_invariants=True)
    back = through_bytes([tensor])[0]
    assert not back.is_coalesced()
    assert back._values().tolist() == [2.0, 3.0]


def test_conjugated_and_negated_views_are_resolved():
    z = torch.tensor([1 + 2j, 3 - 1j])
    back = through_bytes({"conj": z.conj(), "imag": z.conj().imag})
    assert torch.equal(back["conj"], z.conj().resolve_conj())
    assert torch.equal(back["imag"], z.conj().imag.resolve_neg())
    assert not back["conj"].is_conj()
    assert not back["imag"].is_neg()


def test_leaf_tensors_keep_requires_grad_and_parameters_stay_parameters():
    leaf = torch.ones(2, requires_grad=True)
    back = through_bytes({"leaf": leaf, "graph": leaf * 2, "p": torch.nn.Parameter(torch.ones(1))})
    assert back["leaf"].requires_grad
    assert not back["graph"].requires_grad
    assert type(back["p"]) is torch.nn.Parameter


def test_small_values_of_torch_and_numpy_come_back():
    tree = {"d": torch.bfloat16, "dev": torch.device("cuda:1"), "size": torch.Size([2, 3]), "np": np.dtype("<f4")}
    assert through_bytes(tree) == tree


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda items: collections.deque(items, maxlen=len(items) + 1))
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
    ),
    max_leaves=20,
)


@settings(max_examples=80, deadline=None)
@given(PLAIN)
def test_any_nesting_of_plain_values_comes_back(tree):
    assert repr(through_bytes(tree)) == repr(tree)  # repr: nan is not equal to itself


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.zeros(2, device="meta"), "meta"),
        (np.array([object()]), "Python objects"),
        (np.ma.array([1.0]), "subclass"),
        (lambda: 0, "cannot be saved"),
        (random, "cannot be saved"),
        (torch.nn.Parameter(torch.zeros(1)).as_subclass(type("Odd", (torch.Tensor,), {})), "subclass"),
    ],
    ids=["meta", "objects", "masked", "function", "module", "subclass"],
)
def test_what_has_no_data_form_is_refused_with_its_place(value, word):
    with pytest.raises(CannotCarryError, match=word) as caught:
        flatten({"history": [0, {"x": value}]})
    assert caught.value.path == 'history[1]["x"]'
    assert caught.value.hint


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors_are_refused():
    with pytest.raises(CannotCarryError, match="quint8"):
        flatten([torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)])


def test_a_generator_among_plain_values_comes_back_where_it_was():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    state = through_bytes({"g": generator})["g"].state
    want = torch.rand(4, generator=generator)
    fresh = torch.Generator()
    fresh.set_state(state["state"])
    assert torch.equal(torch.rand(4, generator=fresh), want)


opened = []


def note_opening():
    opened.append(1)


class Loud:
    def __reduce__(self):
        return (note_opening, ())


def test_a_pickled_object_stays_closed_until_its_value_is_read():
    back = through_bytes({"x": Pickled(Loud())})["x"]
    live = {"x": 0}
    World().restore_plain(live, {"x": back})
    World().restore_plain(live, {"x": back})
    assert opened == []
    _ = live["x"].value
    assert opened == [1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda form: form.update(shape=[2000]),
        lambda form: form.update(strides=[4000]),
        lambda form: form.update(strides=[-4]),
        lambda form: form.update(offset=-4),
        lambda form: form.update(dtype="Tensor"),
        lambda form: form.update(dtype="load"),
        lambda form: form.update({"$": "unheard"}),
        lambda form: form.pop("entry"),
        lambda form: form.pop("shape"),
        lambda form: form.update(entry="nobody"),
    ],
)
def test_a_reference_that_does_not_fit_its_bytes_is_corrupt_and_never_read(spoil):
    document, leaves = flatten({"t": torch.zeros(4)})
    buffers = {buffer.name: bytes(buffer.data) for buffer in to_buffers(leaves)}
    spoil(document["t"])
    with pytest.raises(CorruptError):
        unflatten(document, buffers.__getitem__)


def test_an_array_of_python_objects_cannot_come_out_of_a_file():
    document, leaves = flatten({"a": np.zeros(2)})
    buffers = {buffer.name: bytes(buffer.data) for buffer in to_buffers(leaves)}
    document["a"]["dtype"] = "|O"
    with pytest.raises(CorruptError, match="Python objects"):
        unflatten(document, buffers.__getitem__)


def test_buffers_on_the_cpu_are_the_live_memory():
    tensor = torch.zeros(3)
    (buffer,) = to_buffers(flatten([tensor])[1])
    tensor.fill_(1.0)
    assert np.frombuffer(buffer.data, np.float32).tolist() == [1.0] * 3


def test_names_say_what_a_buffer_is_and_are_unique():
    tree = {"a": {"b": torch.ones(1)}, "a/b": torch.ones(2), "l": [torch.ones(3), torch.ones(4)]}
    document, leaves = flatten(tree)
    assert [leaf.name for leaf in leaves] == ["a/b", "a/b~2", "l/0", "l/1"]
    json.dumps(document, allow_nan=False)


def test_memory_that_is_not_aligned_to_its_type_comes_back():
    octets = np.arange(41, dtype=np.uint8)
    odd = octets[1:].view(np.float32)
    tree = {"octets": octets, "odd": odd, "part": odd[2:4]}
    back = through_bytes(tree)
    assert back["odd"].tobytes() == odd.tobytes()
    assert back["part"].tobytes() == odd[2:4].tobytes()


def test_what_has_no_data_form_names_the_way_to_opt_in():
    with pytest.raises(CannotCarryError, match=r"x\[0\] of type builtins\.object has no data form") as caught:
        flatten({"x": [object()]})
    assert "perdure.Pickled" in caught.value.hint
