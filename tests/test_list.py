"""`calib list`: every registry shows itself, from the code that defines it."""

from __future__ import annotations

import json

import pytest
import registry_tables

from calibcli.api import catalogue
from calibcli.cli.app import main
from calibcli.core.errors import UsageError, did_you_mean


def test_every_registry_of_the_package_is_listed() -> None:
    import gc
    import warnings

    from calibcli.core.registries import Registry

    listed = {id(one.registry) for one in catalogue.REGISTRIES.values()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.unfreeze()  # conftest.py froze what was imported by then, which `get_objects` leaves out
        registries = [found for found in gc.get_objects() if isinstance(found, Registry)]
        gc.freeze()
    assert listed <= set(map(id, registries))
    missing = {s.kind for s in registries if id(s) not in listed and any(_ours(e.target) for e in s)}
    assert not missing


def _ours(target: object) -> bool:
    return str(getattr(target, "__module__", "")).startswith("calibcli.")


@pytest.mark.parametrize("name", [*catalogue.REGISTRIES, catalogue.FORMATS])
def test_a_registry_has_a_line_for_each_entry(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", name, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert all(table["rows"] for table in tables)
    assert [table["name"] for table in tables] == [name, *[f"{name}_of_papers"] * (len(tables) - 1)]
    if name in catalogue.REGISTRIES:
        entries = catalogue.REGISTRIES[name].registry.entries.values()
        for table, papers in zip(tables, (False, True), strict=False):
            listed = [entry.name for entry in entries if entry.traits.papers is papers]
            assert [row[0] for row in table["rows"]] == listed
            assert all(row[1] for row in table["rows"]), "an entry without a docstring"
        assert sum(len(table["rows"]) for table in tables) == len(entries)


def test_metrics_that_only_papers_use_are_listed_apart() -> None:
    usual, apart = catalogue.tables("metrics")
    assert {"kde_ece", "oce", "uce", "mmce", "overconfidence_error"} <= {row[0] for row in apart.rows}
    assert {"nll_correct", "nll_wrong", "entropy_correct", "entropy_wrong"} <= {row[0] for row in apart.rows}
    assert {"ece", "entropy", "smece", "auc"} <= {row[0] for row in usual.rows}


@pytest.mark.parametrize(
    ("registry", "name"), [(where, entry.name) for where, one in catalogue.REGISTRIES.items() for entry in one.registry]
)
def test_an_entry_shows_its_definition_and_every_option(registry: str, name: str) -> None:
    tables = {table.name: table for table in catalogue.listing(name).tables}
    entry = catalogue.REGISTRIES[registry].registry.entries[name]
    assert tables[f"{registry}_{name}"].rows[0] == [entry.about.splitlines()[0]]
    if entry.options:
        assert [row[0] for row in tables[f"{registry}_{name}_options"].rows] == list(entry.options)


def test_a_format_shows_what_it_is_and_an_example() -> None:
    tables = {table.name: table for table in catalogue.listing("csv").tables}
    assert {"formats_read_csv", "formats_written_csv"} <= set(tables)
    assert "calibcli.read" in str(tables["formats_read_csv_example"].rows)
    assert "folder" in tables["formats_read_csv_example"].columns[0]


def test_hyphens_are_underscores() -> None:
    assert catalogue.listing("focal-temperature").tables == catalogue.listing("focal_temperature").tables


def test_the_overview_names_every_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*catalogue.REGISTRIES, catalogue.FORMATS))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.listing("eec")
    assert caught.value.fix == "did you mean 'ece'?"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("gap", "did you mean 'confidence_gap'?"),  # no name is close to it in spelling
        ("WRONG", "did you mean 'nll_wrong' or 'entropy_wrong'?"),
        ("focal", "did you mean 'focal-temperature'?"),
        ("mean", "did you mean 'mean_confidence'?"),  # not 'mce', which is closer in spelling
        ("debias", "did you mean 'ece2_debiased'?"),
        ("xyzzy", "choose from: "),
        ("_p", "choose from: "),
    ],
)
def test_a_word_of_a_name_gets_the_names_that_have_it(name: str, fix: str) -> None:
    known = ["mce", "mean_confidence", "confidence_gap", "entropy_wrong", "nll_wrong", "ece2_debiased"]
    assert did_you_mean(name, [*known, "focal-temperature"]).startswith(fix)


@pytest.mark.parametrize("page", registry_tables.PAGES)
def test_the_tables_of_the_docs_are_those_of_the_registries(page: str) -> None:
    text = registry_tables.PAGES[page].read_text(encoding="utf-8")
    assert registry_tables.filled(text) == text, "run `python tests/registry_tables.py`"


def test_every_registry_that_has_many_entries_has_a_table_in_the_docs() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in registry_tables.PAGES.items()}
    listed = {name for text in texts.values() for name in registry_tables.BLOCK.findall(text)}
    assert listed >= {"metrics", "methods", "losses", "penalties", "quantities", "architectures", "formats"}
    assert {name for name, text in texts.items() if registry_tables.COUNT.search(text)} >= {"README.md", "CHANGELOG.md"}
