"""A policy's text becomes a checked configuration, or a failure that says what to mend."""

import sys
import textwrap

import pytest

from policies.contract import decide
from policies.space import Space
from records.errors import EnvironmentFault
from records.study import Constraint, Dimension, Environment, Link, SearchSpace
from records.trial import Config, Failed, FailureKind, Policy, Stage
from records.workload import Workload

WORKLOAD = Workload(name="w", global_batch=16, sequence_length=128, layer_count=4)
ENVIRONMENT = Environment(
    name="e",
    device="cpu",
    accelerator="cpu",
    world_size=4,
    ranks_per_node=4,
    scale_up=Link(bandwidth_bytes_per_s=1e9),
    software={"torch": "2.0"},
)
SPACE = Space(
    SearchSpace(
        dimensions=(
            Dimension(name="tp", choices=(1, 2, 4)),
            Dimension(name="pp", choices=(1, 2, 4)),
            Dimension(name="overlap", choices=(True, False), when="tp > 1"),
        ),
        constraints=(Constraint(name="ranks", expression="tp * pp <= world_size"),),
    ),
    WORKLOAD,
    ENVIRONMENT,
)


def decided(body):
    source = f"def generate_config(workload, environment):\n{textwrap.indent(body, '    ')}\n"
    return decide(Policy(source=source, author="test"), WORKLOAD, ENVIRONMENT, SPACE)


def test_a_policy_computes_a_configuration_from_both_arguments():
    config = decided(
        "return {'tp': environment['world_size'] / 2, 'pp': workload['layer_count'] // 2,"
        " 'overlap': False}"
    )
    assert config == Config({"tp": 2, "pp": 2, "overlap": False})


def test_every_field_is_there_and_what_is_not_known_is_none():
    config = decided(
        "link = environment['scale_up']['bandwidth_bytes_per_s']\n"
        "assert environment['scale_out'] is None and environment['software']['torch'] == '2.0'\n"
        "assert workload['vocab_size'] is None and workload['global_batch'] == 16\n"
        "return {'tp': 1, 'pp': 1 if link == 1e9 else 4}"
    )
    assert config == Config({"tp": 1, "pp": 1})


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return [1]", "generate_config returned a value of type list"),
        ("return workload['layers']", "KeyError"),
        ("return {'tp': 1, 'pp': 1", "SyntaxError"),
    ],
)
def test_a_program_that_fails_is_a_policy_error_with_its_cause(body, cause):
    failed = decided(body)
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.kind) == (Stage.DECIDE, FailureKind.POLICY_ERROR)
    assert cause in failed.message
    assert "\n" not in failed.message


def test_the_line_of_a_policy_error_is_named_once():
    failed = decided("x = 1\ny = 0\nreturn {'tp': x / y}")
    assert failed.message.startswith("line 4: ")
    assert failed.message.count("line 4") == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "{'tp': 4, 'pp': 2, 'overlap': True}",
            "breaks ranks: tp * pp <= world_size with pp=2, tp=4, world_size=4",
        ),
        (
            "{'tp': 3, 'dp': 1}",
            "'dp' is unknown; known are tp, pp, overlap; knob tp is 3 (int), not one of [1, 2, 4]; "
            "knob pp is missing; choose one of [1, 2, 4]",
        ),
    ],
)
def test_a_wrong_answer_is_an_invalid_configuration_with_its_faults(answer, message):
    failed = decided(f"return {answer}")
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.kind) == (Stage.CHECK, FailureKind.INVALID_CONFIG)
    assert failed.message == message


def test_a_flood_of_faults_is_cut_to_a_message():
    failed = decided("return {f'name{n}' * 100: 1 for n in range(90)}")
    assert failed.kind is FailureKind.INVALID_CONFIG
    assert len(failed.message) < 2000
    assert "\n" not in failed.message


def test_a_machine_that_cannot_isolate_policies_ends_the_study(monkeypatch):
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(EnvironmentFault, match="cannot be isolated on plan9"):
        decided("return {'tp': 1, 'pp': 1}")
