"""Each rule left out on purpose turns some test red: the tests can fail."""

import pytest

from perdure.training.world import optimizers, refill
from perdure.training.world.attributes import Attributes
from perdure.training.world.modules import ModulePart
from perdure.training.world.optimizers import OptimizerPart
from perdure.training.world.stateful import StatefulPart
from perdure.training.world.world import World
from world import (
    test_encoding_of_state,
    test_head_state,
    test_module_state,
    test_optimizer_state,
    test_plain_state,
    test_scenario_state,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def turns_red(test, *arguments):
    """Whether a test fails."""
    try:
        test(*arguments)
    except Exception:
        return True
    return False


def scenario(name, cut):
    """Whether a scenario's test fails."""
    test_scenario_state.straight(name)
    return turns_red(test_scenario_state.test_a_scenario_restored_in_a_fresh_world_goes_on_bit_for_bit, name, cut)


def test_the_tests_of_gradients_can_fail(monkeypatch):
    monkeypatch.setattr(ModulePart, "_gradients", lambda *_: iter(()))
    assert turns_red(test_module_state.test_gradients_come_back_and_none_stays_none)
    assert turns_red(test_module_state.test_sparse_gradients_come_back_sparse)


def test_the_tests_of_train_flags_can_fail(monkeypatch):
    flags = ModulePart._flags
    monkeypatch.setattr(ModulePart, "_flags", lambda *a: {**flags(*a), "training": {}})
    assert turns_red(test_module_state.test_train_and_eval_flags_of_each_module_come_back)


def test_the_tests_of_frozen_parameters_can_fail(monkeypatch):
    flags = ModulePart._flags
    monkeypatch.setattr(ModulePart, "_flags", lambda *a: {**flags(*a), "frozen": []})
    assert turns_red(test_module_state.test_frozen_parameters_come_back_frozen_and_others_not)


def test_the_tests_of_optimizers_can_fail_with_the_stock_load_state_dict(monkeypatch):
    capture = OptimizerPart.capture

    def stock(part, saved, names, refill):
        part.value.load_state_dict(saved["stock"])

    monkeypatch.setattr(OptimizerPart, "capture", lambda p, n: {**capture(p, n), "stock": p.value.state_dict()})
    monkeypatch.setattr(OptimizerPart, "restore", stock)
    assert turns_red(test_optimizer_state.test_state_is_not_cast_to_the_type_of_the_parameter)
    assert turns_red(test_optimizer_state.test_groups_are_found_by_name_whatever_their_order_here)
    assert turns_red(test_optimizer_state.test_a_group_that_was_added_later_comes_back)
    assert turns_red(test_optimizer_state.test_lists_and_dicts_of_groups_stay_the_same_objects)
    assert scenario("frozen_then_unfrozen", 6)


def test_the_tests_of_groups_can_fail(monkeypatch):
    monkeypatch.setattr(optimizers, "_restore_groups", lambda *_: None)
    assert scenario("warmup_cosine", 6)
    assert scenario("frozen_then_unfrozen", 6)


def test_the_tests_of_the_head_can_fail(monkeypatch):
    monkeypatch.setattr(World, "restore_head", lambda *_: None)
    assert turns_red(test_head_state.test_code_at_the_head_finds_what_it_found_and_the_boundary_brings_the_rest)


def test_the_tests_of_plain_attributes_can_fail(monkeypatch):
    monkeypatch.setattr(Attributes, "changed", lambda *_: {})
    assert turns_red(test_module_state.test_plain_attributes_that_training_changed_come_back_in_place)
    assert turns_red(test_optimizer_state.test_lookahead_goes_on_with_its_counter_and_slow_weights)


def test_the_tests_of_refilling_can_fail(monkeypatch):
    monkeypatch.setattr(refill, "_fits", lambda *_: False)
    assert turns_red(
        test_plain_state.test_nested_containers_arrays_and_leaf_tensors_are_refilled_and_references_stay_good
    )


def test_the_tests_of_ties_can_fail(monkeypatch):
    monkeypatch.setattr("perdure.tensors.encoding.overlapping", lambda extents: [[e] for e in extents])
    assert turns_red(test_encoding_of_state.test_views_of_several_dtypes_share_one_memory)
    assert turns_red(test_encoding_of_state.test_arrays_share_memory_among_themselves_and_with_tensors)
    monkeypatch.setattr(refill.Refill, "_claim", lambda *_: True)
    assert turns_red(test_plain_state.test_one_live_tensor_in_two_places_gets_two_tensors_if_they_were_two)


@pytest.mark.parametrize(
    ("part", "name", "cut"),
    [(StatefulPart, "onecycle", 6), (StatefulPart, "gradscaler_cpu", 8), (StatefulPart, "ema", 6)],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_the_tests_of_stateful_objects_can_fail(monkeypatch, part, name, cut):
    monkeypatch.setattr(part, "restore", lambda *_: None)
    assert scenario(name, cut)


def test_the_tests_of_buffers_can_fail(monkeypatch):
    capture = ModulePart.capture

    def without_buffers(part, names):
        saved = capture(part, names)
        saved["buffers"].value.clear()
        saved["lazy"] = list(part.names().buffers)
        return saved

    monkeypatch.setattr(ModulePart, "capture", without_buffers)
    assert scenario("zero_dim_buffers", 6)
    assert scenario("batchnorm_cumulative", 6)
