"""`python -m maxtext.plot`."""

import json
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from maxtext import plot


def write(file, steps, *, loss=2.0):
    lines = [
        {"step": step, "loss": loss, "grad_norm": loss, "tokens_per_second_per_device": loss}
        for step in steps
    ]
    lines += [{"step": step, "eval/avg_loss": loss} for step in list(steps)[::50]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def done(argv, capsys):
    try:
        code = plot.main([str(one) for one in argv])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_runs_become_one_picture(tmp_path, capsys) -> None:
    from matplotlib.image import imread

    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "metrics.jsonl", range(40))
    write(tmp_path / "wide.jsonl", [*range(200), *range(300, 400)], loss=3.0)
    out = tmp_path / "two.png"
    runs = [tmp_path / "deep", tmp_path / "wide.jsonl"]
    assert done([*runs, "--out", out], capsys) == (0, f"written to {out}\n", "")
    pixels = imread(out)[..., :3]
    # The first two colors, each in all four quarters.
    for color in ((0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)):
        near = (abs(pixels * 255 - color) < 8).all(axis=-1)
        height, width = near.shape
        for rows in (slice(height // 10, height // 2), slice(height // 2, None)):
            for columns in (slice(width // 2), slice(width // 2, None)):
                assert near[rows, columns].any()


BAD = {
    "no run": ("", "are required: RUN"),
    "a run that is not there": ("gone", "gone: there is no such file or folder"),
    "a folder of something else": ("empty", "holds no metrics file"),
    "a folder of several runs": (
        ".",
        "good.jsonl, new.jsonl, notes.jsonl, odd.jsonl, other.jsonl, word.jsonl",
    ),
    "a file of something else": ("notes.jsonl", "notes.jsonl, line 1: something else"),
    "a line without a step": ("odd.jsonl", "odd.jsonl, line 2: something else"),
    "a step that is no number": ("word.jsonl", "word.jsonl, line 1: something else"),
    "a run of other values": ("other.jsonl", "other: nothing to draw; what is drawn are learning/"),
    "no TensorBoard file": ("events.out.tfevents.1.host", "something else than TensorBoard's"),
    "a run that has not begun": ("new.jsonl", "no step is reported in it yet"),
    "a picture of another kind": ("good.jsonl --out a.gif", "must end in .png, .pdf or .svg"),
    "a folder that is not there": ("good.jsonl --out gone/a.png", "gone/a.png cannot be written"),
}


@pytest.mark.parametrize(("line", "says"), BAD.values(), ids=BAD)
def test_a_bad_input_is_one_clear_error(line, says, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.jsonl").write_text("dear diary\n")
    (tmp_path / "odd.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"loss": 2.0}\n')
    (tmp_path / "word.jsonl").write_text('{"step": "1", "loss": 2.0}\n')
    (tmp_path / "other.jsonl").write_text('{"step": 1, "speed": 2.0}\n')
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"dear diary, it rained")
    (tmp_path / "new.jsonl").write_text("")
    write(tmp_path / "good.jsonl", range(3))
    before = sorted(tmp_path.rglob("*"))
    code, out, err = done(line.split(), capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_any_name_of_a_run_is_drawn_to_the_letter(tmp_path, capsys, monkeypatch) -> None:
    shown = []

    def save(figure, *_, **__):
        shown.extend(text.get_text() for text in figure.legends[0].get_texts())
        drawn(figure, *_, **__)

    drawn = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", save)
    names = ["_hidden", r"$\frac{a$", "\U0001f600"]
    for name in names:
        write(tmp_path / f"{name}.jsonl", range(3))
    out = tmp_path / "all.png"
    code, _, err = done([*(tmp_path / f"{name}.jsonl" for name in names), "--out", out], capsys)
    assert (code, err) == (0, "")
    assert shown == names


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    write(tmp_path / "good.jsonl", range(3))
    code, _, err = done([tmp_path / "good.jsonl"], capsys)
    assert code == 2
    assert "pip install matplotlib" in err


def test_help_waits_for_nothing() -> None:
    program = (
        "import sys, maxtext.plot; print(sorted({'jax', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", program]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ctrl_c_ends_without_a_traceback(tmp_path, capsys, monkeypatch) -> None:
    def interrupt(*_):
        raise KeyboardInterrupt

    write(tmp_path / "a.jsonl", range(3))
    monkeypatch.setattr("maxtext.metrics.figure.draw", interrupt)
    argv = [tmp_path / "a.jsonl", "--out", tmp_path / "a.png"]
    assert done(argv, capsys) == (130, "", "interrupted\n")
