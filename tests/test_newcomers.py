"""What a newcomer gets wrong on the command line: the fix that is printed, copied and run, works or says why not."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, UsageError

N = 300
WORKS = (Exit.OK, Exit.FAIL, Exit.INCONCLUSIVE)
STEPS = 3  # fixes that may follow each other
LIMITS = ("--max", "--min", "--margin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that people have, each under the name that a case calls it by."""
    folder = tmp_path_factory.mktemp("newcomer")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, N)
    z = rng.normal(size=(N, 3))
    z[np.arange(N), y] += 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    two = (rng.uniform(size=N) < (q := np.round(rng.uniform(0.02, 0.98, N), 3))).astype(int)
    names = np.array(["cat", "dog", "eel"])[y]
    predicted = np.array(["cat", "dog", "eel"])[z.argmax(axis=1)]

    def npz(name: str, **arrays: np.ndarray) -> None:
        np.savez(folder / name, **arrays)

    def table(name: str, header: str, *columns: np.ndarray, cut: str = ",") -> None:
        lines = [cut.join(map(str, row)) for row in zip(*columns, strict=True)]
        (folder / name).write_text("\n".join([header, *lines]) + "\n")

    npz("test.npz", logits=z, labels=y, site=np.array(["a", "b"])[y % 2])
    npz("other.npz", logits=z[::-1] * 1.1, labels=y[::-1])
    npz("later.npz", logits=z * 1.1, labels=y)
    npz("binary.npz", probs=np.column_stack([1 - q, q]), labels=two)
    npz("named.npz", logits=z, labels=names)
    npz("sexes.npz", probs=np.column_stack([1 - q, q]), labels=np.where(two == 1, "yes", "no"))
    npz("onehot.npz", logits=z, labels=np.eye(3)[y])
    npz("soft.npz", logits=z, labels=p)
    npz("base.npz", logits=z, labels=y + 1)
    npz("void.npz", logits=z, labels=np.where(np.arange(N) % 50 == 0, -100, y))
    npz("hundred.npz", probs=100 * p, labels=y)
    npz("rounded.npz", probs=np.round(0.97 * p + 0.01, 2), labels=y)
    npz("sigmoids.npz", probs=1 / (1 + np.exp(-z)), labels=y)
    npz("many.npz", probs=1 / (1 + np.exp(-z)), labels=(rng.uniform(size=(N, 3)) < 0.5).astype(int))
    npz("turned.npz", logits=z.T, labels=y)
    npz("short.npz", logits=z, labels=y[:-5])
    npz("holes.npz", logits=np.where(rng.uniform(size=z.shape) < 0.01, np.nan, z), labels=y)
    npz("unnamed.npz", arr_0=z, arr_1=y)
    npz("bare.npz", logits=z)
    npz("signs.npz", probs=np.column_stack([1 - q, q]), labels=2 * two - 1)
    npz("log.npz", probs=np.log(p), labels=y)
    npz(
        "states.npz",
        logits=np.where(z < -1.5, -np.inf, z)[z[np.arange(N), y] > -1.5],
        labels=y[z[np.arange(N), y] > -1.5],
    )
    np.save(folder / "logits.npy", z)
    np.save(folder / "y.npy", y)
    ids = np.arange(N)
    age, sex = rng.integers(20, 80, N), rng.choice(["m", "f"], N)
    table("titanic.csv", "PassengerId,Survived,my_pred,Sex,Age", ids, two, q, sex, age)
    crp = np.round(rng.gamma(2, 10, N), 1)
    table("crp.csv", "patient,age,sex,crp,predicted_risk,died_30d", ids, age, sex, crp, q, two)
    sure = np.round(50 + 50 * rng.uniform(size=N)).astype(int)
    table("sure.csv", "truth;pred;conf %", names, predicted, sure, cut=";")
    table("hard.csv", "id,pred,label", ids, (q > 0.5).astype(int), two)
    table("words.csv", "id,pred,label", ids, predicted, names)
    table("top.csv", "confidence,label", p.max(axis=1), y)
    table("nohead.csv", "0.1,0.7,0.2,1", *np.round(p, 3).T, y)
    table("groups.csv", "p_cat,p_dog,p_eel,answer", *np.round(p, 5).T, names)
    table("columns.csv", "cat,dog,eel,best", *np.round(z, 5).T, names)
    table("mf.csv", "prob,label", q, np.where(two == 1, "m", "f"))
    table("percent.csv", "confidence,correct", sure, (rng.uniform(size=N) < sure / 100).astype(int))
    (folder / "empty.csv").write_text("")
    (folder / "notes.txt").write_text("not a table\n")
    (folder / "model.py").write_text("print('a model')\n")
    return folder


MISTAKES: dict[str, tuple[str, str]] = {
    # name: (the line without `calib`, "" where the fix works or the words that say that it cannot)
    "titanic": ("metrics titanic.csv", ""),
    "risk": ("metrics crp.csv", ""),
    "confidence in percent": ("metrics sure.csv", ""),
    "hard labels": ("metrics hard.csv --scores pred", "there is no probability"),
    "hard labels, not named": ("metrics hard.csv", "there is no probability"),
    "hard labels in words": ("metrics words.csv --scores pred", "there is no probability"),
    "two columns of yes and no": ("metrics sexes.npz -m accuracy -m auroc", ""),
    "one column of m and f": ("metrics mf.csv", ""),
    "three columns and names": ("metrics named.npz", ""),
    "auroc of three classes": ("metrics test.npz -m auroc", ""),
    "log_loss": ("metrics test.npz -m log_loss", ""),
    "Brier score": ("metrics test.npz -m brier-score", ""),
    "two metrics with a comma": ("metrics test.npz -m ece,nll", ""),
    "an option after a comma": ("metrics test.npz -m ece,bins=20", ""),
    "an option misspelled": ("metrics test.npz -m ece:bin=20", ""),
    "a metric misspelled": ("metrics test.npz -m acuracy", ""),
    "percent": ("check test.npz --max ece=5%", ""),
    "percent without a sign": ("check test.npz --max ece=5", ""),
    "accuracy in percent": ("check test.npz --min accuracy=90", ""),
    "a decimal comma": ("check test.npz --max ece=0,05", ""),
    "a comparison": ("check test.npz --max 'ece<0.05'", ""),
    "two words": ("check test.npz --max 'ece 0.05'", ""),
    "no number": ("check test.npz --max ece", ""),
    "the wrong side": ("check test.npz --max accuracy=.7", ""),
    "a limit on a misspelled metric": ("check test.npz --max eec=.1", ""),
    "a second file to scale": ("scale test.npz other.npz", ""),
    "a second file to measure": ("metrics test.npz later.npz", ""),
    "one file to compare": ("compare test.npz", "two or more"),
    "other rows": ("compare test.npz other.npz", "'id' column"),
    "no command": ("test.npz", ""),
    "a command misspelled": ("metrcs test.npz", ""),
    "a file misspelled": ("metrics tset.npz", ""),
    "no suffix": ("metrics test", ""),
    "the list of studies": ("list studies", "calib study lists those"),
    "a list in the singular": ("list metric", ""),
    "an option of another name": ("metrics test.npz --metrics ece", ""),
    "half an option": ("metrics test.npz --label labels", ""),
    "a method cut off": ("scale test.npz --method temp", ""),
    "two methods with a comma": ("scale test.npz --method platt,temperature", ""),
    "a calibrator as JSON": ("scale test.npz --save c.json", "use the suffix .safetensors"),
    "a picture of no format": ("metrics test.npz -o page.foo", "use a suffix of"),
    "a column that is not there": ("metrics test.npz --by sites", ""),
    "labels that are not there": ("metrics bare.npz", "--labels FILE"),
    "scores under no name": ("metrics unnamed.npz", ""),
    "scores alone": ("metrics logits.npy", "--labels FILE"),
    "labels from one": ("metrics base.npz", ""),
    "ignored labels": ("metrics void.npz", ""),
    "classes -1 and 1": ("metrics signs.npz", ""),
    "soft labels": ("metrics soft.npz", "the class that was observed"),
    "shares of a hundred": ("metrics hundred.npz", "divide by 100"),
    "rounded": ("metrics rounded.npz", ""),
    "sigmoids with one label": ("metrics sigmoids.npz --kind probabilities", r"both must be \(N, L\)"),
    "several labels": ("metrics many.npz", ""),
    "transposed": ("metrics turned.npz", "save logits.T"),
    "too few labels": ("metrics short.npz", "exactly these rows"),
    "NaN": ("metrics holes.npz", ""),
    "log-probabilities called probs": ("metrics log.npz", ""),
    "masked logits": ("metrics states.npz", ""),
    "no header": ("metrics nohead.csv", ""),
    "columns of classes": ("metrics columns.csv", ""),
    "the top class alone": ("metrics top.csv", "every class"),
    "confidence out of a hundred": ("metrics percent.csv", ""),
    "an empty file": ("metrics empty.csv", "is the file truncated"),
    "a text": ("metrics notes.txt", "calib list formats"),
    "a program": ("metrics model.py", "calib list formats"),
    "a calibrator and scores changed places": ("apply test.npz c.safetensors --save o.npz", "before the scores"),
    "no option where one is needed": ("apply c.safetensors test.npz", ""),
    "a kind that is none": ("metrics test.npz --kind logit", ""),
    "an event of three classes": ("metrics test.npz --event 1", ""),
    "too few names": ("metrics test.npz --classes cat,dog", "name every column once"),
    "two ways to test": ("scale test.npz --test other.npz --folds 5", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_fix_works_or_says_that_it_cannot(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    line, cannot = MISTAKES[name]
    argv, tried = shlex.split(line), list[str]()
    for _ in range(STEPS + 1):
        code = main(argv)
        error = capsys.readouterr().err
        if code in WORKS:
            assert tried, f"no mistake: calib {line}"
            assert not cannot, f"it can: {tried}"
            return
        problem, _, fix = error[error.index("error: ") :].partition("\n  fix: ")
        tried.append(f"calib {shlex.join(argv)}\n{problem}\n  fix: {fix}")
        if cannot and re.search(cannot, fix):
            return
        argv = mended(argv, problem, fix.strip())
    pytest.fail("\n".join(tried))


@pytest.mark.parametrize(
    ("name", "fix"), [("auroc", "did you mean 'auc'?"), ("ece,nll", "write each by itself: -m ece -m nll")]
)
def test_the_metric_that_was_meant_is_named(name: str, fix: str) -> None:
    """And no other one that is spelled alike, which runs as well."""
    with pytest.raises(UsageError, match="unknown metric") as error:
        calibcli.measure([[0.2, 0.8], [0.6, 0.4]], [1, 0], name)
    assert error.value.fix == fix


def test_labels_yes_and_no_have_one_order_in_one_column_and_in_two() -> None:
    """What one column was taken for, P of `yes`, two columns are too; it is noted, and other names are asked for."""
    rng = np.random.default_rng(0)
    q = rng.uniform(0.02, 0.98, 200)
    labels = np.where(rng.uniform(size=200) < q, "yes", "no")
    one = calibcli.from_arrays(q, labels)
    two = calibcli.from_arrays(np.column_stack([1 - q, q]), labels)
    assert one.classes == two.classes == ["no", "yes"]
    assert one.labels.tolist() == two.labels.tolist() == (labels == "yes").astype(int).tolist()
    assert "the score columns are taken to be no and yes, in this order" in two.notes
    with pytest.raises(calibcli.CalibError) as error:
        calibcli.from_arrays(np.column_stack([1 - q, q]), np.where(labels == "yes", "m", "f"))
    assert "classes='f,m'" in error.value.fix


def mended(argv: list[str], problem: str, fix: str) -> list[str]:
    """Apply a fix to a command line as somebody does who copies it: its first way."""
    if command := re.search(r"calib ([a-z]+ [^;]*|[a-z]+$)", fix):
        words = shlex.split(command[1].partition("; ")[0].rstrip("?"))
        return words if set(argv[1:]) & set(words) or len(words) < 3 else [*words, *argv[2:]]
    if near := re.search(r"did you mean (--[\w-]+)\?", fix):
        wrong = re.search(r"no such option: (\S+)", problem)
        assert wrong
        return [near[1] if word == wrong[1] else word for word in argv]
    if near := re.search(r"did you mean '([^']*)'\?", fix):
        return replaced(argv, problem, near[1])
    if share := re.fullmatch(r"\S+ % is (\S+)", fix):
        return [re.sub(r"=[\d.]+$", f"={share[1]}", word) for word in argv]
    if spec := re.match(r"write ([a-z_]+:\S+)$", fix):
        return replaced(argv, problem, spec[1])
    if choice := re.match(r"(?:choose from:|write one of them:|use) (\w+)", fix):
        return replaced(argv, problem, choice[1])
    if fix.startswith(("leave it out", "pass one of them")):
        wrong = re.findall(r"--[\w-]+", problem)
        at = argv.index(wrong[-1])
        return argv[:at] + argv[at + 2 :]
    options = re.search(r"(?:^|[ :(])(--?[a-z][\w-]*(?:[ =][^;]*)?)", fix)
    assert options, f"what is to be done? {fix}"
    words = shlex.split(re.split(r"; | if | or | to |, then|, in theirs|: the| drops", options[1])[0].rstrip(",:)"))
    return with_options(argv, words)


def with_options(argv: list[str], words: list[str]) -> list[str]:
    """The line with these options, in place of those of the same name."""
    names = {word.partition("=")[0] for word in words if word.startswith("-")}
    names |= set(LIMITS) if names & set(LIMITS) else set()
    kept, skip = [], False
    for i, word in enumerate(argv):
        if skip:
            skip = False
        elif word in names:
            skip = i + 1 < len(argv) and not argv[i + 1].startswith("-")
        else:
            kept.append(word)
    return [*kept, *words]


def replaced(argv: list[str], problem: str, by: str) -> list[str]:
    """The line with `by` in place of what is most like it of the words that the problem names."""
    quoted = [word for pair in re.findall(r"'([^']+)'|(\S+)", problem) for word in pair if word]
    quoted = [word.strip(":,") for word in quoted]
    there = {word for word in quoted for one in argv[1:] if word in one and word != by and word[0] != "-"}
    wrong = max(there, key=lambda word: difflib.SequenceMatcher(None, word, by).ratio())
    return [argv[0], *(one.replace(wrong, by) for one in argv[1:])]
