# SPDX-License-Identifier: Apache-2.0
"""What was renamed still answers to its old name, with a warning that names the new one."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from typing import Self

import pytest
import torch

import jitgen
from jitgen import quantize
from jitgen._version import __version__
from jitgen.compile import worker_server
from jitgen.config import Config
from jitgen.support.moved import DROPPED_IN, MOVED, NAMES, OPERATIONS, take_old_methods


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_gives_the_module_itself_and_a_warning(old: str) -> None:
    parent = old.rpartition(".")[0]
    if parent in MOVED:  # importing it warns of it alone
        sys.modules.pop(parent, None)
        with pytest.warns(DeprecationWarning, match=f"{parent} is now"):
            importlib.import_module(parent)
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}; jitgen {DROPPED_IN}"):
        found = importlib.import_module(old)

    assert found is importlib.import_module(MOVED[old])


@pytest.mark.parametrize(("module", "old"), [(m, old) for m in NAMES for old in NAMES[m]])
def test_an_old_name_gives_what_the_new_one_does(module: str, old: str) -> None:
    found, new = importlib.import_module(module), NAMES[module][old]
    text = f"{module}.{old} is now {new}; jitgen {DROPPED_IN} drops"

    with pytest.warns(DeprecationWarning, match=text) as warned:
        thing = getattr(found, old)

    assert thing is getattr(found, new)
    assert warned[0].filename == __file__
    assert old not in dir(found)


@pytest.mark.parametrize("module", NAMES)
def test_a_name_that_never_was_is_missing_as_ever(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018


def test_layers_of_an_older_pickle_find_their_hook() -> None:
    config = jitgen.MoEConfig(hidden=128, intermediate=128, experts=1, top_k=1)
    weights = jitgen.ExpertWeights(
        w13=torch.ones(1, 256, 128).bfloat16(), w2=torch.ones(1, 128, 128).bfloat16()
    )
    now = pickle.dumps(jitgen.MoELayer(config, weights), 2)  # names are text in it
    old = now.replace(b"cjitgen.layer.bound\nlook_again\n", b"cjitgen.layer.module\n_look_again\n")

    assert old != now
    assert pickle.loads(old).weights.w13.shape == (1, 256, 128)  # noqa: S301


def test_weights_of_an_older_pickle_are_read() -> None:
    weights = quantize.prepack_mxfp4_from(torch.ones(1, 64, 128))
    made, parts = weights.__reduce__()
    earlier = type("Earlier", (), {"__reduce__": lambda self: (made, parts[:-1])})()
    old = pickle.dumps(earlier, 0).replace(b"prepacked_weights\n", b"prepacked\n")
    assert torch.equal(pickle.loads(old).weights(), weights.weights())  # noqa: S301
    for now, before in ((b"prepacked", b"prepared"), (b"Prepacked", b"Prepared")):
        old = old.replace(now, before)
    sys.modules.pop("jitgen.formats.prepared", None)
    with pytest.warns(DeprecationWarning, match="formats.prepared is now jitgen.formats.prepacked"):
        found = pickle.loads(old)  # noqa: S301  # what this test wrote

    assert isinstance(found, quantize.PrepackedWeights)
    assert torch.equal(found.weights(), weights.weights())


@pytest.mark.parametrize("old", OPERATIONS)
def test_an_operation_of_a_saved_graph_is_the_new_one(old: str) -> None:
    importlib.import_module("jitgen.torch")
    ops = torch.ops.jitgen
    before, now = getattr(ops, old), getattr(ops, OPERATIONS[old])

    assert before.overloads() == now.overloads()
    for overload in now.overloads():
        text = str(getattr(now, overload)._schema).replace(OPERATIONS[old], old)
        assert str(getattr(before, overload)._schema) == text


def test_a_task_of_an_older_version_is_run() -> None:
    sys.modules.pop("jitgen.runtime.task", None)
    with pytest.warns(DeprecationWarning, match="is now jitgen.plans.task"):
        task = worker_server.resolve("jitgen.runtime.task:build_task")

    assert task.__module__ == "jitgen.plans.task"


def test_a_plug_in_may_define_its_methods_by_their_old_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.(words|of_words) is now"):

        class Old(Config):
            def words(self) -> str:
                return "v4"

            @classmethod
            def of_words(cls, words: str) -> Self | None:
                raise ValueError(words)

    assert Old.to_name is Old.words
    with pytest.raises(ValueError, match="v4"):
        Old.parse_name("v4")


def test_rules_of_a_plug_in_may_doubt() -> None:
    class Rules:
        def doubt(self) -> str:
            return "an estimate"

    with pytest.warns(DeprecationWarning, match="Rules.doubt is now confidence_note"):
        take_old_methods(Rules)

    assert Rules().confidence_note() == "an estimate"  # type: ignore[attr-defined]


def test_the_list_goes_with_the_version_that_it_names() -> None:
    now, dropped = (tuple(map(int, text.split("."))) for text in (__version__, DROPPED_IN))

    assert now < dropped


def test_a_module_that_never_was_is_missing_as_ever() -> None:
    code = "import jitgen.no_such_module"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "ModuleNotFoundError: No module named 'jitgen.no_such_module'" in ran.stderr
