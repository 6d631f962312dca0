"""Data frames: names of columns and the index of rows are used or refused, by every public function."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import Fit

K, N = 3, 300
RNG = np.random.default_rng(11)
Z = RNG.normal(size=(N, K)) * 2
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(1)
MOVED = RNG.permutation(N)
NAMES = np.array(["ant", "bee", "cat"])


class Column:
    """What a column of pandas shows to others: an array, its name and the index of its rows."""

    def __init__(self, values: Any, index: Any = None, name: Any = None) -> None:
        self.values, self.name = np.asarray(values), name
        self.index = np.arange(len(self.values)) if index is None else np.asarray(index)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def to_numpy(self) -> np.ndarray:
        return self.values


class Frame(Column):
    """What a data frame of pandas shows to others."""

    def __init__(self, values: Any, columns: Any = None, index: Any = None) -> None:
        super().__init__(values, index)
        self.columns = list(range(self.values.shape[1]) if columns is None else columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return Frame(self.values[:, [self.columns.index(one) for one in key]], key, self.index)
        return Column(self.values[:, self.columns.index(key)], self.index, key)


Makers = tuple[Callable[..., Any], Callable[..., Any]]


def makers(library: str) -> Makers:
    """Return what makes a frame of values, columns and an index, and what makes a column of values and an index."""
    if library == "stand-in":
        return Frame, Column
    module = pytest.importorskip(library)
    if library == "pandas":
        return (
            lambda values, columns=None, index=None: module.DataFrame(values, columns=columns, index=index),
            lambda values, index=None, name=None: module.Series(values, index=index, name=name),
        )
    return (  # polars has texts for names, and no index
        lambda values, columns=None, index=None: module.DataFrame(
            np.asarray(values), schema=[str(c) for c in (range(values.shape[1]) if columns is None else columns)]
        ),
        lambda values, index=None, name=None: module.Series(name or "", np.asarray(values)),
    )


EXTRA = [pytest.param(name, marks=pytest.mark.extra) for name in ("pandas", "polars")]
every_library = pytest.mark.parametrize("library", ["stand-in", *EXTRA])
with_index = pytest.mark.parametrize("library", ["stand-in", EXTRA[0]])


# Every public function that takes scores or labels, found by its signature.

SCORES, LABELS = ("scores", "confidence", "inside", "pilot", "data", "X"), ("labels", "correct", "y")
AT_ANY_PLACE = ("pilot", "data")  # also where they are keywords: else a keyword names an array in a file
OBJECTS = {"Accumulator": lambda: calibcli.Accumulator("nll"), "Watch": lambda: calibcli.Watch(max={"ece": 0.9})}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield public functions, and methods of public classes on a new object, by name."""
    for name in calibcli.__all__:
        one = getattr(calibcli, name)
        if not isinstance(one, type):
            yield name, one
        elif name not in ("Predictions", "Result", "Estimate", "CalibError"):  # these hold what others return
            for method in ("fit", "update"):
                if hasattr(one, method):
                    make = OBJECTS.get(name, one)
                    yield f"{name}.{method}", lambda *a, make=make, method=method, **k: getattr(make(), method)(*a, **k)


def signature(name: str) -> inspect.Signature:
    owner, _, method = name.partition(".")
    one = getattr(getattr(calibcli, owner), method) if method else getattr(calibcli, owner)
    found = inspect.signature(one)
    return found.replace(parameters=[p for p in found.parameters.values() if p.name != "self"])


def role(name: str, names: tuple[str, ...]) -> str:
    """Return the parameter of a function that takes arrays of this role, or ""."""
    fits = [
        p.name
        for p in signature(name).parameters.values()
        if p.name in names and (p.name in AT_ANY_PLACE or p.kind is not p.KEYWORD_ONLY or name == "plan")
    ]
    return fits[0] if fits else ""


WITH_MODEL = {name for name, _ in public() if "model" in signature(name).parameters}
FOUND = {
    n: one
    for n, one in public()
    if role(n, SCORES) and (role(n, SCORES) != "data" or role(n, LABELS) or n in WITH_MODEL)
}
LABELLED = [name for name in FOUND if role(name, LABELS)]
OF_CLASSES = [
    name
    for name in FOUND
    if role(name, SCORES) not in ("confidence",) and name not in ("curvature", "hessian", "train", "logits")
]


def fill(name: str, folder: Path) -> dict[str, Any]:
    """Return values for the other parameters that a function needs; a new one is to be named here."""
    fit = calibcli.fit_scaler(Z, Y)
    known: dict[str, Callable[[], Any]] = {
        "calibrator": lambda: fit,
        "save": lambda: folder / {"export": "c.json", "apply": "scores.npz"}.get(name, "out.npz"),
        "to": lambda: "json",
        "outside": lambda: Z[::-1][: N // 2] / 3,
        "deployed": lambda: (
            calibcli.export(fit, "json", save=folder / "d.json", data=Z).artefacts and folder / "d.json"
        ),
        "model": lambda: _linear(),
    }
    needed = [
        p.name for p in signature(name).parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    needed = [
        one for one in needed if one not in (*SCORES, *LABELS) and signature(name).parameters[one].kind.value != 2
    ]
    assert set(needed) <= set(known), f"say what {name} takes as {set(needed) - set(known)}"
    more: dict[str, Any] = {
        "plan": {"min": {"accuracy": 0.5}},
        "threshold": {"max_risk": 0.9},
        "check": {"max": {"ece": 0.3}},
        "train": {"epochs": 1},
    }.get(name, {})
    return {one: known[one]() for one in needed} | more


def _linear() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Linear(K, K)


def call(name: str, folder: Path, scores: Any, labels: Any, **more: Any) -> Any:
    """Call a public function with these arrays in their roles."""
    given = fill(name, folder)
    values: dict[str, Any] = {role(name, SCORES): scores}
    if role(name, LABELS):
        values[role(name, LABELS)] = labels
    elif "model" in given:
        values["data"] = (np.asarray(scores, np.float32) if isinstance(scores, np.ndarray) else scores, labels)
    if name == "find_slices":
        more = {"by": {"half": np.arange(N) % 2}, "min_n": 50, **more}
    bound = {**values, **given, **more}
    places = [
        p
        for p in signature(name).parameters.values()
        if p.kind is p.POSITIONAL_ONLY or p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    positional = [bound.pop(p.name) for p in places if p.name in bound]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FOUND[name](*positional, **bound)


def arrays(name: str) -> tuple[Any, Any]:
    if role(name, SCORES) == "confidence":
        return P.max(1), (P.argmax(1) == Y).astype(int)
    return Z if "model" not in signature(name).parameters or role(name, LABELS) else Z.astype(np.float32), Y


def numbers(found: Any) -> Any:
    """Return what was computed, in a form that can be compared."""
    if isinstance(found, calibcli.Accumulator):
        found = found.result("nll")
    if isinstance(found, calibcli.Calibrator):
        found = found.fit_
    if isinstance(found, calibcli.Predictions):
        found = calibcli.measure(found, "brier" if not found.top_only else "ece")
    if isinstance(found, Fit):
        return {name: np.asarray(one).round(9).tolist() for name, one in found.scaler.parameters.items()}
    if hasattr(found, "to_scipy"):
        return round(found.top()[0].value, 9), found.rows
    saved = {
        name: {key: value for key, value in np.load(path).items() if key != "classes"}
        for name, path in found.artefacts.items()
        if str(path).endswith("z")
    }
    lists = {name: {key: np.asarray(v).tolist() for key, v in one.items()} for name, one in saved.items()}
    return [(e.name, e.scope, None if e.value is None else round(e.value, 9)) for e in found.estimates], lists


def outcome(name: str, folder: Path, scores: Any, labels: Any, **more: Any) -> Any:
    """Return the numbers, or "refused"."""
    try:
        return numbers(call(name, folder, scores, labels, **more))
    except calibcli.CalibError:
        return "refused"


def test_the_functions_that_take_arrays_are_found() -> None:
    """A new one is among them without being named; those of today stand here, so that something is found."""
    today = """measure from_arrays from_confidence fit_scaler scale apply check plan find_slices ood export verify
        curvature hessian train logits Accumulator.update Watch.update Calibrator.fit"""
    assert set(FOUND) >= set(today.split())


@pytest.mark.one_in(6)
@every_library
@pytest.mark.parametrize("name", FOUND)
def test_a_plain_frame_is_its_array(name: str, library: str, tmp_path: Path) -> None:
    frame, column = makers(library)
    scores, labels = arrays(name)
    held = column(scores) if scores.ndim == 1 else frame(scores)
    right = outcome(name, tmp_path, scores, labels)
    assert right != "refused"
    (tmp_path / "2").mkdir()
    assert outcome(name, tmp_path / "2", held, column(labels)) == right


@pytest.mark.one_in(4)
@pytest.mark.regression
@with_index
@pytest.mark.parametrize("name", [*LABELLED, "curvature", "hessian", "train", "logits"])
def test_an_index_in_another_order_is_refused(name: str, library: str, tmp_path: Path) -> None:
    frame, column = makers(library)
    scores, labels = arrays(name)
    make = column if scores.ndim == 1 else frame
    for index in (np.arange(N), np.array([f"id{i}" for i in range(N)])):
        with pytest.raises(calibcli.CalibError, match="different orders by their index") as refused:
            call(name, tmp_path, make(scores, index=index), column(labels, index=index[MOVED]))
        assert ".to_numpy()" in refused.value.fix
        assert ".loc[" in refused.value.fix
    together = make(scores[MOVED], index=MOVED), column(labels[MOVED], index=MOVED)
    (tmp_path / "2").mkdir()
    (tmp_path / "3").mkdir()
    assert outcome(name, tmp_path / "2", *together) == outcome(name, tmp_path / "3", scores[MOVED], labels[MOVED])


@pytest.mark.one_in(3)
@pytest.mark.regression
@with_index
@pytest.mark.parametrize("name", LABELLED)
def test_further_columns_in_another_order_are_refused(name: str, library: str, tmp_path: Path) -> None:
    frame, column = makers(library)
    scores, labels = arrays(name)
    held = (column if scores.ndim == 1 else frame)(scores)
    moved: dict[str, Any] = {
        "weights": column(np.ones(N), index=MOVED),
        "sample_weight": column(np.ones(N), index=MOVED),
        "ids": column(np.arange(N), index=MOVED),
        "group": column(np.arange(N) // 2, index=MOVED),
        "groups": column(np.arange(N) // 2, index=MOVED),
        "by": frame(np.arange(N)[:, None] % 2, ["half"], index=MOVED),
    }
    taken = {key for key in moved if key in signature(name).parameters}
    assert taken or name in ("Accumulator.update",)
    for key in taken:
        if name in ("fit_scaler", "plan", "apply", "export") and key == "by":
            continue  # one map, or plan, is made of all rows
        with pytest.raises(calibcli.CalibError, match="different orders by their index"):
            call(name, tmp_path, held, column(labels), **{key: moved[key]})


def test_indices_that_pair_nothing_are_left_alone() -> None:
    """As after a split at random, where predictions are numbered anew: their rows have the order of the labels."""
    right = calibcli.measure(P, Y, "nll")["nll"]
    for index in (MOVED[::-1] * 7 + 5, MOVED + N, np.array([f"id{i}" for i in MOVED])):
        assert calibcli.measure(Frame(P), Column(Y, index=index), "nll")["nll"] == right
    half = np.where(np.arange(N) < N // 3, np.arange(N), -np.arange(N))
    assert calibcli.measure(Frame(P, index=np.arange(N) + 1000), Column(Y, index=half), "nll")["nll"] == right
    assert calibcli.measure(Frame(P, index=[7] * N), Column(Y, index=[7] * N), "nll")["nll"] == right
    with pytest.raises(calibcli.CalibError, match="different orders"):  # one row less in either, and a shift
        calibcli.measure(Frame(P, index=np.arange(N) + 1), Column(Y, index=np.arange(N) + 2), "nll")


@pytest.mark.one_in(4)
@pytest.mark.regression
@every_library
@pytest.mark.parametrize("name", OF_CLASSES)
def test_columns_in_another_order_give_the_same_numbers_or_are_refused(name: str, library: str, tmp_path: Path) -> None:
    frame, column = makers(library)
    right = outcome(name, tmp_path, Z, Y)
    for i, order in enumerate(([2, 1, 0], [1, 2, 0])):
        for j, (names, labels) in enumerate(
            [(np.arange(K), Y), (np.array([f"logit_{k}" for k in range(K)]), Y), (NAMES, NAMES[Y])]
        ):
            (folder := tmp_path / f"{i}{j}").mkdir()
            found = outcome(name, folder, frame(Z[:, order], names[order].tolist()), column(labels))
            assert found == "refused" or name == "apply" or _alike(found, right), (names, order)


def _alike(a: Any, b: Any) -> bool:
    """Whether numbers are equal but for the order of classes, in which vectors are kept."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(
            np.allclose(np.sort(np.ravel(a[k])), np.sort(np.ravel(b[k])), atol=1e-4) for k in a
        )
    values = [{(name, scope): value for name, scope, value in one[0]} for one in (a, b)]
    shared = values[0].keys() & values[1].keys()
    return bool(shared) and all(
        values[0][key] is None or abs(values[0][key] - values[1][key]) <= 1e-5 * max(1, abs(values[1][key]))
        for key in shared
    )


@pytest.mark.regression
@every_library
def test_a_map_keeps_and_checks_the_names_of_its_columns(library: str, tmp_path: Path) -> None:
    frame, column = makers(library)
    named, moved = frame(Z, NAMES.tolist()), frame(Z[:, [2, 0, 1]], NAMES[[2, 0, 1]].tolist())
    fit = calibcli.fit_scaler(named, column(Y), "vector")
    right = calibcli.fit_scaler(Z, Y, "vector").predict_proba(Z)
    calibcli.save_scaler(fit, tmp_path / "c.safetensors")
    calibrator = calibcli.Calibrator(method="vector").fit(named, NAMES[Y])
    for held in (fit, calibcli.load_scaler(tmp_path / "c.safetensors"), fit.scaler, calibrator):
        assert np.allclose(held.predict_proba(named), right)
        assert np.allclose(held.predict_proba(Z), right)
        assert np.allclose(held.predict_proba(frame(Z)), right)
        for other in (moved, frame(Z, ["x", "y", "z"]), frame(Z[:, [2, 1, 0]], [2, 1, 0])):
            with pytest.raises(calibcli.CalibError, match="in this order"):
                held.predict_proba(other)
    with pytest.raises(calibcli.CalibError) as refused:
        fit.predict_proba(moved)
    assert refused.value.fix == "pass scores[['ant', 'bee', 'cat']]"
    assert np.allclose(fit.predict_proba(moved[["ant", "bee", "cat"]]), right)
    with pytest.raises(calibcli.CalibError, match="order"):
        calibcli.apply(fit, moved, save=tmp_path / "new.csv")
    calibcli.apply(fit, named, save=tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text().startswith("prob_ant,prob_bee,prob_cat")
    unnamed = calibcli.fit_scaler(Z, Y, "vector")
    assert np.allclose(unnamed.predict_proba(named), right)
    with pytest.raises(calibcli.CalibError, match="in this order"):
        unnamed.predict_proba(frame(Z[:, ::-1], [2, 1, 0]))


@pytest.mark.regression
@every_library
def test_a_calibrator_takes_columns_in_the_order_of_its_classes(library: str) -> None:
    frame, _ = makers(library)
    right = calibcli.Calibrator(method="vector").fit(Z, NAMES[Y]).predict_proba(Z)
    order = [2, 0, 1]
    with pytest.raises(calibcli.CalibError, match="another order than the classes") as refused:
        calibcli.Calibrator(method="vector").fit(frame(Z[:, order], NAMES[order].tolist()), NAMES[Y])
    assert refused.value.fix == "pass scores[['ant', 'bee', 'cat']]"
    with pytest.raises(calibcli.CalibError, match="another order than the classes"):
        calibcli.Calibrator(method="vector").fit(frame(Z[:, ::-1], ["p_2", "p_1", "p_0"]), Y)
    with pytest.raises(calibcli.CalibError, match="not named after the labels"):
        calibcli.Calibrator(method="vector").fit(frame(Z, ["x", "y", "z"]), NAMES[Y])
    for names in (NAMES.tolist(), [f"score_{name}" for name in NAMES], None):
        assert np.allclose(calibcli.Calibrator(method="vector").fit(frame(Z, names), NAMES[Y]).predict_proba(Z), right)

    class Reversed:
        classes_ = NAMES

        def predict_proba(self, X: Any) -> Any:
            return frame(P[:, ::-1], NAMES[::-1].tolist())

    with pytest.raises(calibcli.CalibError, match="in this order"):
        calibcli.scorer("nll")(Reversed(), Z, NAMES[Y])


HEADS = [
    ["0", "1"], ["1", "0"], ["p_0", "p_1"], ["p_1", "p_0"], ["no", "yes"], ["yes", "no"], ["False", "True"],
    ["True", "False"], ["prob_no", "prob_yes"], ["prob_yes", "prob_no"], ["cat", "dog"], ["p_dog", "p_cat"], ["3", "5"],
    ["5", "3"], ["1", "2"], ["2", "1"], ["left", "right"], ["p_benign", "p_malignant"],
]  # fmt: skip
VALUES = [[0, 1], ["no", "yes"], [False, True], ["cat", "dog"], [3, 5], [1, 2]]


@pytest.mark.one_in(3)
@pytest.mark.regression
@every_library
@pytest.mark.parametrize("head", HEADS, ids=",".join)
def test_a_frame_is_read_as_its_csv_or_refused(head: list[str], library: str, tmp_path: Path) -> None:
    """Where the CSV says which column is of which class, the frame does, too; else the order is that of the labels."""
    frame, column = makers(library)
    p = 1 / (1 + np.exp(-RNG.normal(size=400) * 2 - 0.5))
    hit = (RNG.random(400) < p).astype(int)
    for values in VALUES:
        labels = np.array(values)[hit]
        bare = [one.rpartition("_")[2] for one in head]
        backwards = bare in (["1", "0"], [str(value) for value in values[::-1]])
        table = np.column_stack([p, 1 - p] if backwards else [1 - p, p])
        rows = [f"{a},{b},{label}" for (a, b), label in zip(table.tolist(), labels.tolist(), strict=True)]
        (path := tmp_path / "t.csv").write_text("\n".join([",".join([*head, "label"]), *rows, ""]))
        right = calibcli.measure(p, hit, "nll", "brier")
        try:
            read = calibcli.measure(frame(table, head), column(labels), "nll", "brier")
        except calibcli.CalibError:
            read = None
        try:
            csv = calibcli.measure(path, None, "nll", "brier")
        except calibcli.CalibError:
            csv = None
        for found in (read, csv):
            for name in ("nll", "brier") if found is not None else ():
                assert found[name].value == pytest.approx(right[name].value, rel=1e-9), (values, name)
        if [str(value) for value in values] in (bare, bare[::-1]):
            assert read is not None, values  # names that are those of the labels are never refused


@every_library
def test_names_of_single_columns_count_as_in_files(library: str, tmp_path: Path) -> None:
    _, column = makers(library)
    hit = (Y == 0).astype(int)
    with pytest.raises(calibcli.CalibError, match="of class 0"):
        calibcli.measure(column(P[:, 0], name="prob_0"), column(hit))
    with pytest.raises(calibcli.CalibError, match="confidence in the predicted class"):
        calibcli.measure(column(P[:, 0], name="confidence"), column(hit))
    right = calibcli.measure(P[:, 0], hit, "nll")["nll"].value
    for name in ("prob", "prob_1", "anything", "label", None):
        assert calibcli.measure(column(P[:, 0], name=name), column(hit, name="label"), "nll")["nll"].value == right


@every_library
def test_further_frames_are_read_by_their_names(library: str) -> None:
    frame, _ = makers(library)
    sites = np.column_stack([np.arange(N) % 2, np.arange(N) % 3])
    found = calibcli.measure(P, Y, "accuracy", by=frame(sites, ["site", "ward"]))
    right = calibcli.measure(P, Y, "accuracy", by={"site": sites[:, 0], "ward": sites[:, 1]})
    assert found.estimates == right.estimates
    named = calibcli.measure(P, Y, "accuracy", by={"group": sites[:, 0], "ids": sites[:, 1]})
    assert len(named.estimates) == len(right.estimates)
    one_hot, order = np.eye(K, dtype=int)[Y], [1, 2, 0]
    aligned = calibcli.measure(frame(P, NAMES.tolist()), frame(one_hot[:, order], NAMES[order].tolist()), "nll")
    assert aligned["nll"].value == calibcli.measure(P, Y, "nll")["nll"].value
    targets = (RNG.random((N, K)) < P).astype(int)
    several = calibcli.measure(frame(P, NAMES.tolist()), frame(targets, NAMES.tolist()), "nll", multilabel=True)
    assert {scope.rpartition("=")[2] for _, scope in several} == {*NAMES}
    with pytest.raises(calibcli.CalibError, match="different orders"):
        calibcli.measure(frame(P, NAMES.tolist()), frame(targets, NAMES[::-1].tolist()), "nll", multilabel=True)


def test_what_names_leave_open_is_refused() -> None:
    hit = (Y == 0).astype(int)
    two = np.column_stack([1 - P[:, 0], P[:, 0]])
    for columns, labels, said in (
        (["yes", "no"], hit, "do not say which of them 1 is"),
        ([5, 3], hit, "do not name all labels either"),
        (["p_0", "p_1", "rest"], Y, "by their names"),
    ):
        scores = P if len(columns) == 3 else two
        with pytest.raises(calibcli.CalibError, match=said):
            calibcli.measure(Frame(scores, columns), labels)
    with pytest.raises(calibcli.CalibError, match="another order than that of the columns"):
        calibcli.measure(Frame(P, NAMES.tolist()), Y, classes=["cat", "ant", "bee"])
    assert calibcli.measure(Frame(P, ["p", "p", "p"]), Y, "nll")["nll"] == calibcli.measure(P, Y, "nll")["nll"]
    moved = calibcli.measure(Frame(P[:, [1, 0, 2]], [1, 0, 2]), Y, "nll")
    assert moved["nll"] == calibcli.measure(P, Y, "nll")["nll"]
    assert "columns 1, 0, 2 are taken in the order 0, 1, 2" in moved.notes
    with pytest.raises(calibcli.CalibError, match="two columns of by"):
        calibcli.measure(P, Y, by=Frame(np.ones((N, 2)), ["a", "a"]))


# Arguments in the order of scikit-learn.


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize("name", LABELLED)
def test_labels_before_scores_are_said_to_be_swapped(name: str, tmp_path: Path) -> None:
    scores, labels = arrays(name)
    two = (Y == 0).astype(int)
    pairs = [(labels, scores)]
    if scores.ndim == 2:
        pairs += [(NAMES[Y], P), (np.eye(K)[Y], P), (Y.astype(float), Z.round().astype(int)), (two, P[:, 0])]
        pairs += [(two.astype(bool), P[:, 0]), (two[:, None], P[:, :1]), (2 * two - 1, np.log(P[:, 0]))]
    for first, second in pairs:
        with pytest.raises(
            calibcli.CalibError, match="first argument holds labels and the second one scores"
        ) as refused:
            call(name, tmp_path, first, second)
        assert "exchange them" in refused.value.fix


def draw(rng: np.random.Generator) -> tuple[Any, Any, dict[str, Any]]:
    """Draw scores and labels as honest users pass them."""
    n, k = int(rng.choice([40, 500, 2000])), int(rng.choice([2, 3, 10]))
    z = rng.normal(size=(n, k)) * rng.choice([0.3, 2, 8])
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    form, how = rng.integers(7), dict[str, Any]()
    scores: Any = [z, p, np.log(p), z.astype(np.float16), p.astype(np.float32), (z * 8).round().astype(np.int8), p][
        form
    ]
    if k == 2 and rng.random() < 0.5:
        scores, y = (scores[:, 1] - scores[:, 0] if form in (0, 3) else p[:, 1]), y
    held = [y, y.astype(float), y.astype(np.int32), [f"c{i}" for i in y], np.eye(k, dtype=int)[y], y.tolist()]
    choice = int(rng.integers(6)) if np.ndim(scores) == 2 else int(rng.integers(3))
    if choice == 3:
        how = {"classes": [f"c{i}" for i in range(k)]}
    if form == 5 and np.ndim(scores) == 2:
        how["kind"] = "logits"
    return scores, held[choice], how


@pytest.mark.regression
def test_of_200_honest_pairs_none_is_said_to_be_swapped_and_of_200_swapped_ones_all() -> None:
    rng, said = np.random.default_rng(5), [0, 0]
    for _ in range(200):
        scores, labels, how = draw(rng)
        for i, (first, second) in enumerate(((scores, labels), (labels, scores))):
            try:
                calibcli.from_arrays(first, second, **how)
            except calibcli.CalibError as error:
                said[i] += "scikit-learn has them" in error.problem
    assert said == [0, 200]


def test_soft_targets_are_not_said_to_be_swapped() -> None:
    for scores, labels in ((Z, P), (P[:, 0], P[:, 1]), (Z.round(), P)):
        with pytest.raises(calibcli.CalibError) as refused:
            calibcli.measure(scores, labels)
        assert "scikit-learn" not in refused.value.problem
