"""The reach into jsonargparse's settings: named here when a new version breaks it."""

from typing import Any

import jsonargparse
import pytest

from vision_attn.compat import import_policy
from vision_attn.compat.import_policy import importing_only

SETTINGS: dict[str, Any] = vars(import_policy)["parsing_settings"]


def parser() -> jsonargparse.ArgumentParser:
    made = jsonargparse.ArgumentParser(exit_on_error=False)
    made.add_argument("--kind", type=type)
    return made


def test_the_settings_of_other_parsers_are_put_back() -> None:
    from jsonargparse._common import parsing_settings

    assert SETTINGS is parsing_settings
    before = dict(parsing_settings)
    with importing_only(["torch"]):
        assert parsing_settings != before
        assert parser().parse_args(["--kind", "torch.nn.Linear"]).kind.__name__ == "Linear"
        with pytest.raises(jsonargparse.ArgumentError, match=r"'decimal\.Decimal' is not allowed"):
            parser().parse_args(["--kind", "decimal.Decimal"])
    assert parsing_settings == before
    assert parser().parse_args(["--kind", "decimal.Decimal"]).kind.__name__ == "Decimal"


def test_they_are_put_back_after_an_error() -> None:
    before = dict(SETTINGS)
    with pytest.raises(ZeroDivisionError), importing_only(["torch"]):
        raise ZeroDivisionError
    assert before == SETTINGS


def test_without_the_private_dict_the_policy_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(SETTINGS)
    kept = SETTINGS
    try:
        monkeypatch.setattr(import_policy, "parsing_settings", {})
        with (
            importing_only(["torch"]),
            pytest.raises(jsonargparse.ArgumentError, match="is not allowed"),
        ):
            parser().parse_args(["--kind", "decimal.Decimal"])
    finally:
        kept.update(before)
