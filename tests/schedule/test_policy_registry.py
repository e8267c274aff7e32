"""How a policy is found by name, and what is said when it is not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swingshift.errors import ConfigError
from swingshift.schedule import (
    DynamicSchedulePolicyBase,
    Rebalance,
    StaticFullyAsyncPolicy,
    available_policies,
    base,
    build_policy,
    register_policy,
)
from swingshift.user_code import describe_exception

MODULE = """
from swingshift.schedule import StaticFullyAsyncPolicy

class Mine(StaticFullyAsyncPolicy):
    def __init__(self, deactivate_ratio=0.5, only_hybrid=False, patience=1):
        super().__init__(deactivate_ratio, only_hybrid)
        if patience < 0:
            raise ValueError("patience must not be negative")
        self.patience = patience

not_a_policy = object()
"""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that offers policies by entry point."""
    (tmp_path / "their_policies.py").write_text(MODULE)
    (tmp_path / "their_wrong_policies.py").write_text("Mine = {}['ratio']\n")
    info = tmp_path / "their_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[swingshift.policies]\n"
        "patient = their_policies:Mine\n"
        "default = their_policies:Mine\n"
        "broken = their_policies:Missing\n"
        "gone = no_such_module:Mine\n"
        "wrong = their_wrong_policies:Mine\n"
        "odd = their_policies:not_a_policy\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_policies", None)


def test_built_in_policies_are_known_without_importing_them() -> None:
    known = available_policies()
    assert {"default", "fixed_ratio", "static_fully_async"} <= known.keys()
    assert known["fixed_ratio"] == "swingshift.schedule.fixed_ratio:FixedRatioDynamicSchedulePolicy"
    policy = build_policy("fixed_ratio", deactivate_ratio=0.7)
    assert policy.deactivate_ratio == 0.7  # type: ignore[attr-defined]


def test_only_hybrid_reaches_the_policy() -> None:
    assert build_policy("default", deactivate_ratio=0.3, only_hybrid=True).deactivate_ratio == 1.0  # type: ignore[attr-defined]


def test_register_by_decorator() -> None:
    @register_policy("lazy")
    class Lazy(StaticFullyAsyncPolicy):
        pass

    assert isinstance(build_policy("lazy"), Lazy)
    assert "Lazy" in available_policies()["lazy"]
    register_policy("lazy")(Lazy)  # the same class again, as after a reload


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match=r"'default' is registered already.*choose another name"):

        @register_policy("default")
        class Other(StaticFullyAsyncPolicy):
            pass

    assert type(build_policy("default")).__name__ == "DefaultDynamicSchedulePolicy"


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"dynamic_schedule_policy=defalt: no policy is called so.*'default'"):
        build_policy("defalt")
    with pytest.raises(ConfigError, match="known: default, fixed_ratio"):
        build_policy("zzz")


def test_wrong_arguments_name_the_policy() -> None:
    with pytest.raises(
        ConfigError, match=r"policy=default: building the policy raised TypeError: .*patience.*policy_kwargs"
    ):
        build_policy("default", patience=3)


def test_abstract_policy_cannot_be_built() -> None:
    @register_policy("unfinished")
    class Unfinished(DynamicSchedulePolicyBase):
        def __init__(self, deactivate_ratio: float, only_hybrid: bool) -> None: ...

    with pytest.raises(ConfigError, match=r"unfinished.*abstract"):
        build_policy("unfinished")


@pytest.mark.usefixtures("distribution")
def test_entry_points() -> None:
    assert available_policies()["patient"] == "entry point their_policies:Mine"
    policy = build_policy("patient", patience=4)
    assert policy.patience == 4  # type: ignore[attr-defined]
    assert type(build_policy("default")).__module__ == "swingshift.schedule.default", "ours keeps its name"
    with pytest.raises(
        ConfigError, match=r"=patient: .* raised ValueError: patience must not be negative \(their_policies.py:8\)"
    ):
        build_policy("patient", patience=-1)


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "=broken: loading the entry point their_policies:Missing raised AttributeError"),
        ("gone", "=gone: loading the entry point no_such_module:Mine raised ModuleNotFoundError"),
        ("wrong", r"=wrong: .* raised KeyError: 'ratio' \(their_wrong_policies.py:1\); correct the package"),
        ("odd", "=odd: is not a subclass"),
        ("their_policies:not_a_policy", "is not a subclass of DynamicSchedulePolicyBase"),
        ("their_policies:Missing", "the module their_policies has no 'Missing'"),
        ("their_policies:mine", "did you mean 'Mine'"),
        ("no_such_module:Mine", "importing no_such_module raised ModuleNotFoundError"),
        (":Mine", "=:Mine: does not name a class; write module:Class"),
        ("their_policies:", "does not name a class; write module:Class"),
        (".their_policies:Mine", "importing .their_policies raised TypeError"),
        ("builtins:dict", "is not a subclass"),
    ],
)
def test_what_cannot_be_loaded_is_a_configuration_error(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        build_policy(name)


@pytest.mark.usefixtures("distribution")
def test_module_and_class() -> None:
    policy = build_policy("their_policies:Mine", deactivate_ratio=0.2, only_hybrid=True, patience=2)
    assert (policy.deactivate_ratio, policy.only_hybrid, policy.patience) == (0.2, True, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [*Rebalance, *(kind.value for kind in Rebalance)])
def test_a_rebalance_may_be_the_plain_word(answer: str) -> None:
    assert base.checked_rebalance(build_policy("default"), answer) is Rebalance(answer)
    assert base.checked_rebalance(build_policy("default"), None) is None


@pytest.mark.parametrize(
    "answer", ["ful", "FULL", "", "none", True, False, 0, 1.5, Rebalance, ["full"], object(), "a\nb"]
)
def test_a_rebalance_of_no_kind_names_the_policy_and_the_answer(answer: object) -> None:
    with pytest.raises(ConfigError) as caught:
        base.checked_rebalance(build_policy("fixed_ratio"), answer)
    text = str(caught.value)
    assert text.startswith("async_training.dynamic_schedule_policy: swingshift.schedule.fixed_ratio:FixedRatio")
    assert "'full' or 'proportional'" in text and " ".join(repr(answer).split()) in text and "\n" not in text


@pytest.mark.parametrize("package", ["importlib", "importlib_metadata"])
def test_who_only_leads_to_the_users_file_is_not_blamed(package: str, tmp_path: Path) -> None:
    """The backport takes the place of the standard module once some library has imported it."""
    folder = Path(importlib.__file__).parent if package == "importlib" else tmp_path / package
    namespace: dict[str, Any] = {}
    exec(compile("def user():\n    raise KeyError('ratio')\n", tmp_path / "policies.py", "exec"), namespace)
    exec(compile("def load():\n    user()\n", folder / "x.py", "exec"), namespace)
    with pytest.raises(KeyError) as caught:
        namespace["load"]()
    # As when the command line is at the top: this test's own frame left out.
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # type: ignore[union-attr]
    assert describe_exception(error) == "KeyError: 'ratio' (policies.py:2)"
